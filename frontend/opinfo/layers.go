package opinfo

import (
	"math"
	"slices"

	"reprise/ir"
)

// layers are norms, embeddings and gated units.
func layers() map[string]operator {
	m := map[string]operator{}
	// normalized is (x - mean)/sqrt(var + eps) over axes, then the affine map.
	affine := func(b *builder, y value, w, bias value, shape []int64) value {
		if w != nil {
			y = b.mul(y, b.reshape(w, shape...))
		}
		if bias != nil {
			y = b.add(y, b.reshape(bias, shape...))
		}
		return y
	}
	channelShape := func(x value) []int64 {
		shape := slices.Repeat([]int64{1}, x.Type.Rank())
		shape[1] = x.Type.Shape[1]
		return shape
	}
	standardize := func(b *builder, x, mean, variance value, eps float64) value {
		return b.mul(b.sub(x, mean), b.un("rsqrt", b.plus(variance, eps)))
	}
	m["nn.functional.layer_norm"] = func(b *builder) []value {
		x, shape := b.x(0), ints(b.arg(1), 1)
		w, bias, eps := b.tensorOf(b.param(2, "weight")), b.tensorOf(b.param(3, "bias")), b.number(b.c.Kwargs["eps"], 1e-5)
		if len(shape) == 1 && w != nil && bias != nil && eps >= 0 {
			return one(b.Op("layer_norm", []value{x, w, bias}, ir.A("eps", eps)))
		}
		axes := allAxes(x)[x.Type.Rank()-len(shape):]
		y := standardize(b, x, b.mean(x, axes, true), b.variance(x, axes, 0, true), eps)
		return one(affine(b, y, w, bias, shape))
	}
	m["nn.functional.group_norm"] = func(b *builder) []value {
		x, groups := b.x(0), b.int(b.arg(1), 1)
		s := x.Type.Shape
		g := b.reshape(x, s[0], groups, x.Type.Len()/max(1, s[0]*groups))
		y := standardize(b, g, b.mean(g, []int64{2}, true), b.variance(g, []int64{2}, 0, true), b.number(b.c.Kwargs["eps"], 1e-5))
		return one(affine(b, b.reshape(y, s...), b.tensorOf(b.param(2, "weight")), b.tensorOf(b.param(3, "bias")), channelShape(x)))
	}
	m["nn.functional.instance_norm"] = func(b *builder) []value {
		x := b.x(0)
		axes := allAxes(x)[2:]
		y := standardize(b, x, b.mean(x, axes, true), b.variance(x, axes, 0, true), b.number(b.c.Kwargs["eps"], 1e-5))
		return one(affine(b, y, b.tensorOf(b.c.Kwargs["weight"]), b.tensorOf(b.c.Kwargs["bias"]), channelShape(x)))
	}
	m["nn.functional.batch_norm"] = func(b *builder) []value {
		x, mean, variance := b.x(0), b.tensorOf(b.arg(1)), b.tensorOf(b.arg(2))
		w, bias := b.tensorOf(b.param(3, "weight")), b.tensorOf(b.param(4, "bias"))
		eps, momentum := b.number(b.c.Kwargs["eps"], 1e-5), b.number(b.c.Kwargs["momentum"], 0.1)
		if x.Type.Len() == 0 {
			return one(b.un("copy", x))
		}
		c := b.num(mean, 0)
		if w == nil {
			w = b.num(c, 1)
		}
		if bias == nil {
			bias = c
		}
		if b.flag(b.c.Kwargs["training"]) {
			op := b.Multi("batch_norm", []value{x, w, bias, mean, variance}, nil, ir.A("axis", 1), ir.A("eps", eps), ir.A("momentum", math.Max(0, momentum)))
			return one(op.Results[0])
		}
		return one(b.Op("batch_norm_inference", []value{x, w, bias, mean, variance}, ir.A("axis", 1), ir.A("eps", eps)))
	}
	m["nn.functional.glu"] = func(b *builder) []value {
		x := b.x(0)
		a := axis(x, b.int(b.param(1, "dim"), -1))
		half := x.Type.Shape[a] / 2
		return one(b.mul(b.slice(x, a, 0, half), b.un("logistic", b.slice(x, a, half, 2*half))))
	}
	m["nn.functional.embedding"] = func(b *builder) []value {
		idx, w := b.x(0), b.x(1)
		if isFloat(idx) {
			idx, w = w, idx
		}
		y := b.Op("take", []value{w, idx}, ir.A("axis", 0))
		if p := b.c.Kwargs["padding_idx"]; p != nil { // its row gets no gradient
			k := b.int(p, 0)
			if k < 0 {
				k += w.Type.Shape[0]
			}
			pad := b.compare("eq", idx, b.num(idx, float64(k)))
			shape := append(slices.Clone(idx.Type.Shape), 1)
			y = b.choose(b.reshape(pad, shape...), b.un("stop_gradient", y), y)
		}
		return one(y)
	}
	return m
}

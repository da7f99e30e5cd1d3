package opinfo

import (
	"maps"
	"math"
	"slices"
	"strings"

	"reprise/ir"
	"reprise/ir/dtype"
)

// operator writes one of PyTorch's operators and returns its outputs.
type operator func(b *builder) []value

// operators maps PyTorch's names.
func operators() map[string]operator {
	all := map[string]operator{}
	for _, group := range []map[string]operator{elementwise(), reductions(), products(), layers(), losses(), indexing(), shapes(), windows()} {
		maps.Copy(all, group)
	}
	return all
}

func one(v value) []value { return []value{v} }

func elementwise() map[string]operator {
	m := map[string]operator{}
	for torch, ours := range map[string]string{
		"neg": "neg", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log1p": "log1p", "log2": "log2", "sqrt": "sqrt", "rsqrt": "rsqrt",
		"sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh", "sinh": "sinh", "cosh": "cosh", "asin": "asin", "acos": "acos", "atan": "atan",
		"sigmoid": "logistic", "erf": "erf", "abs": "abs", "sign": "sign", "nn.functional.relu": "relu", "nn.functional.silu": "silu",
	} {
		m[torch] = func(b *builder) []value { return one(b.un(ours, b.x(0))) }
	}
	for torch, ours := range map[string]string{
		"add": "add", "sub": "sub", "mul": "mul", "pow": "pow", "maximum": "max", "minimum": "min", "fmod": "rem", "atan2": "atan2",
	} {
		m[torch] = func(b *builder) []value { return one(b.bin(ours, b.x(0), b.x(1))) }
	}
	m["div"] = func(b *builder) []value {
		q := b.div(b.x(0), b.x(1))
		switch b.c.Kwargs["rounding_mode"] {
		case "trunc":
			q = b.un("trunc", q)
		case "floor":
			q = b.un("floor", q)
		}
		return one(q)
	}
	// remainder has the sign of the divisor.
	m["remainder"] = func(b *builder) []value {
		x, y := b.x(0), b.x(1)
		q := b.un("floor", b.div(x, y))
		return one(b.sub(x, b.mul(b.un("stop_gradient", q), y)))
	}
	// fmax and fmin prefer a number to a NaN.
	for torch, ours := range map[string]string{"fmax": "max", "fmin": "min"} {
		m[torch] = func(b *builder) []value { return one(b.bin(ours, b.x(0), b.x(1))) }
	}
	m["log10"] = func(b *builder) []value { return one(b.times(b.un("log", b.x(0)), 1/math.Ln10)) }
	m["erfc"] = func(b *builder) []value { return one(b.plus(b.un("neg", b.un("erf", b.x(0))), 1)) }
	m["reciprocal"] = func(b *builder) []value { return one(b.div(b.num(b.x(0), 1), b.x(0))) }
	m["square"] = func(b *builder) []value { return one(b.mul(b.x(0), b.x(0))) }
	m["clamp"] = func(b *builder) []value {
		x := b.x(0)
		lo, hi := b.tensorOf(b.param(1, "min")), b.tensorOf(b.param(2, "max"))
		// The gradient goes to the bound only where x is beyond it.
		if lo != nil {
			x = b.choose(b.compare("lt", x, lo), lo, x)
		}
		if hi != nil {
			x = b.choose(b.compare("gt", x, hi), hi, x)
		}
		return one(x)
	}
	m["where"] = func(b *builder) []value {
		if x := b.x(0); isFloat(x) { // method form: x.where(cond, y)
			return one(b.choose(b.x(1), x, b.x(2)))
		}
		return one(b.choose(b.x(0), b.x(1), b.x(2)))
	}
	m["masked_fill"] = func(b *builder) []value {
		x, v := b.x(0), b.tensorOf(b.arg(2))
		if v == nil {
			v = b.num(x, b.number(b.arg(2), 0))
		}
		return one(b.choose(b.x(1), v, x))
	}
	m["nn.functional.gelu"] = func(b *builder) []value {
		approx, _ := b.c.Kwargs["approximate"].(string)
		return one(b.Op("gelu", []value{b.x(0)}, ir.A("approx", approx)))
	}
	// elu: scale·(x for x > 0, else alpha·(exp(x)-1)).
	elu := func(alpha, scale float64) operator {
		return func(b *builder) []value {
			x := b.x(0)
			zero := b.num(x, 0)
			pos := b.compare("gt", x, zero)
			neg := b.times(b.un("expm1", b.choose(pos, zero, x)), alpha)
			return one(b.times(b.choose(pos, x, neg), scale))
		}
	}
	m["nn.functional.elu"] = elu(1, 1)
	m["nn.functional.selu"] = elu(1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
	m["nn.functional.softplus"] = func(b *builder) []value {
		x, beta, limit := b.x(0), b.number(b.c.Kwargs["beta"], 1), b.number(b.c.Kwargs["threshold"], 20)
		z := b.times(x, beta)
		return one(b.choose(b.compare("gt", z, b.num(z, limit)), x, b.times(b.un("softplus", z), 1/beta)))
	}
	m["nn.functional.leaky_relu"] = func(b *builder) []value {
		x := b.x(0)
		return one(b.choose(b.compare("gt", x, b.num(x, 0)), x, b.times(x, b.number(b.param(1, "negative_slope"), 0.01))))
	}
	hardsigmoid := func(b *builder, x value) value {
		return b.Op("clamp", []value{b.num(x, 0), b.plus(b.times(x, 1.0/6), 0.5), b.num(x, 1)})
	}
	m["nn.functional.hardsigmoid"] = func(b *builder) []value { return one(hardsigmoid(b, b.x(0))) }
	m["nn.functional.hardswish"] = func(b *builder) []value { return one(b.mul(b.x(0), hardsigmoid(b, b.x(0)))) }
	m["nn.functional.mish"] = func(b *builder) []value { return one(b.mul(b.x(0), b.un("tanh", b.un("softplus", b.x(0))))) }
	return m
}

func reductions() map[string]operator {
	m := map[string]operator{}
	for torch, kind := range map[string]string{"sum": "sum", "amax": "max", "amin": "min"} {
		m[torch] = func(b *builder) []value {
			x := b.x(0)
			return one(b.reduce(kind, x, axesOf(x, b.param(1, "dim")), b.flag(b.c.Kwargs["keepdim"])))
		}
	}
	m["mean"] = func(b *builder) []value {
		x := b.x(0)
		return one(b.mean(x, axesOf(x, b.param(1, "dim")), b.flag(b.c.Kwargs["keepdim"])))
	}
	m["prod"] = func(b *builder) []value {
		x := b.x(0)
		return one(b.reduce("prod", x, axesOf(x, b.param(1, "dim")), b.flag(b.param(2, "keepdim"))))
	}
	spread := func(finish func(b *builder, v value) value) operator {
		return func(b *builder) []value {
			x := b.x(0)
			dim, unbiased := b.c.Kwargs["dim"], b.c.Kwargs["unbiased"]
			if f, ok := b.arg(1).(bool); ok {
				unbiased = f
			} else if b.arg(1) != nil {
				dim = b.arg(1)
			}
			correction := b.number(b.c.Kwargs["correction"], 1)
			if unbiased == false {
				correction = 0
			}
			return one(finish(b, b.variance(x, axesOf(x, dim), correction, b.flag(b.c.Kwargs["keepdim"]))))
		}
	}
	m["var"] = spread(func(_ *builder, v value) value { return v })
	m["std"] = spread(func(b *builder, v value) value { return b.un("sqrt", v) })
	m["logsumexp"] = func(b *builder) []value {
		x := b.x(0)
		axes, keep := axesOf(x, b.arg(1)), b.flag(b.param(2, "keepdim"))
		top := b.un("stop_gradient", b.reduce("max", x, axes, true))
		s := b.un("log", b.sum(b.un("exp", b.sub(x, top)), axes, true))
		return one(b.reduce("sum", b.add(s, top), axes, keep)) // axes have size 1 now
	}
	for torch, ours := range map[string]string{"softmax": "softmax", "log_softmax": "log_softmax"} {
		m[torch] = func(b *builder) []value {
			x := b.x(0)
			if x.Type.Rank() == 0 {
				return one(b.reshape(b.Op(ours, []value{b.reshape(x, 1)}, ir.A("axis", 0))))
			}
			return one(b.Op(ours, []value{x}, ir.A("axis", axis(x, b.int(b.param(1, "dim"), 0)))))
		}
	}
	for torch, ours := range map[string]string{"cumsum": "cumsum", "cumprod": "cumprod"} {
		m[torch] = func(b *builder) []value {
			x := b.x(0)
			if x.Type.Rank() == 0 {
				return one(b.un("copy", x))
			}
			return one(b.Op(ours, []value{x}, ir.A("axis", axis(x, b.int(b.param(1, "dim"), 0)))))
		}
	}
	// max and min: of all, of two tensors, or along a dimension (then the gradient goes to
	// the element whose index is returned).
	for torch, ours := range map[string][2]string{"max": {"max", "argmax"}, "min": {"min", "argmin"}} {
		m[torch] = func(b *builder) []value {
			x := b.x(0)
			if y := b.tensorOf(b.arg(1)); y != nil {
				return one(b.bin(ours[0], x, y))
			}
			if b.param(1, "dim") == nil {
				return one(b.reduce(ours[0], x, allAxes(x), false))
			}
			if x.Type.Rank() == 0 {
				return one(b.un("copy", x))
			}
			a := axis(x, b.int(b.param(1, "dim"), 0))
			idx := b.Op(ours[1], []value{x}, ir.A("axis", a))
			shape := slices.Clone(x.Type.Shape)
			shape[a] = 1
			idx = b.reshape(idx, shape...)
			y := b.Op("take_along", []value{x, idx}, ir.A("axis", a))
			if !b.flag(b.param(2, "keepdim")) {
				y = b.reshape(y, slices.Delete(shape, int(a), int(a)+1)...)
			}
			return one(y)
		}
	}
	m["trapezoid"] = func(b *builder) []value {
		y, dx := b.x(0), b.tensorOf(b.arg(1))
		a := axis(y, b.int(b.c.Kwargs["dim"], -1))
		n := y.Type.Shape[a]
		mids := b.add(b.slice(y, a, 0, n-1), b.slice(y, a, 1, n))
		if dx == nil {
			return one(b.times(b.sum(mids, []int64{a}, false), b.number(b.c.Kwargs["dx"], 1)/2))
		}
		d := dx
		if dx.Type.Rank() == 1 && y.Type.Rank() > 1 {
			shape := slices.Repeat([]int64{1}, y.Type.Rank())
			shape[a] = n
			d = b.reshape(dx, shape...)
		}
		da := a - int64(y.Type.Rank()-d.Type.Rank())
		steps := b.sub(b.slice(d, da, 1, n), b.slice(d, da, 0, n-1))
		return one(b.times(b.sum(b.mul(mids, steps), []int64{a}, false), 0.5))
	}
	norm := func(b *builder, x value, p float64, axes []int64, keep bool) value {
		a := b.un("abs", x)
		switch {
		case math.IsInf(p, 1):
			return b.reduce("max", a, axes, keep)
		case math.IsInf(p, -1):
			return b.reduce("min", a, axes, keep)
		case p == 0:
			return b.sum(b.Op("convert", []value{b.compare("ne", x, b.num(x, 0))}, ir.A("to", x.Type.DType)), axes, keep)
		case p == 1:
			return b.sum(a, axes, keep)
		case p == 2:
			return b.un("sqrt", b.sum(b.mul(x, x), axes, keep))
		}
		return b.pow(b.sum(b.pow(a, p), axes, keep), 1/p)
	}
	m["norm"] = func(b *builder) []value {
		x := b.x(0)
		p := 2.0
		switch s, _ := b.param(1, "p").(string); s {
		case "nuc":
			refuse("the nuclear norm (singular values)")
		default:
			p = b.number(b.param(1, "p"), 2)
		}
		return one(norm(b, x, p, axesOf(x, b.param(2, "dim")), b.flag(b.param(3, "keepdim"))))
	}
	m["linalg.vector_norm"] = func(b *builder) []value {
		x := b.x(0)
		return one(norm(b, x, b.number(b.param(1, "ord"), 2), axesOf(x, b.param(2, "dim")), b.flag(b.param(3, "keepdim"))))
	}
	m["nn.functional.normalize"] = func(b *builder) []value {
		x := b.x(0)
		n := norm(b, x, b.number(b.c.Kwargs["p"], 2), []int64{axis(x, b.int(b.c.Kwargs["dim"], 1))}, true)
		return one(b.div(x, b.atLeast(n, b.number(b.c.Kwargs["eps"], 1e-12))))
	}
	return m
}

func products() map[string]operator {
	m := map[string]operator{}
	for _, torch := range []string{"matmul", "mm", "bmm", "dot"} {
		m[torch] = func(b *builder) []value { return one(b.matmul(b.x(0), b.x(1))) }
	}
	m["outer"] = func(b *builder) []value { return one(b.contract(b.x(0), b.x(1), nil, nil, nil, nil)) }
	for _, torch := range []string{"addmm", "baddbmm"} {
		m[torch] = func(b *builder) []value {
			p := b.times(b.matmul(b.x(1), b.x(2)), b.number(b.c.Kwargs["alpha"], 1))
			return one(b.add(b.times(b.x(0), b.number(b.c.Kwargs["beta"], 1)), p))
		}
	}
	m["nn.functional.linear"] = func(b *builder) []value {
		x, w := b.x(0), b.x(1)
		y := b.contract(x, w, nil, nil, []int64{int64(x.Type.Rank() - 1)}, []int64{int64(w.Type.Rank() - 1)})
		if bias := b.tensorOf(b.param(2, "bias")); bias != nil {
			y = b.add(y, bias)
		}
		return one(y)
	}
	m["einsum"] = einsum
	m["nn.functional._scaled_dot_product_attention"] = func(b *builder) []value {
		if b.number(b.c.Kwargs["dropout_p"], 0) != 0 {
			refuse("dropout whose mask is PyTorch's")
		}
		q, k, v := b.x(0), b.x(1), b.x(2)
		r := q.Type.Rank()
		perm := allAxes(k)
		perm[r-2], perm[r-1] = perm[r-1], perm[r-2]
		s := b.matmul(b.times(q, 1/math.Sqrt(float64(q.Type.Shape[r-1]))), b.transpose(k, perm...))
		if b.flag(b.c.Kwargs["is_causal"]) {
			at := func(d int) value {
				return b.Op("iota", nil, ir.A("dim", d), ir.A("shape", s.Type.Shape), ir.A("dtype", dtype.I64))
			}
			s = b.choose(b.compare("le", at(r-1), at(r-2)), s, b.num(s, math.Inf(-1)))
		}
		p := b.Op("softmax", []value{s}, ir.A("axis", r-1))
		return []value{b.matmul(p, v), p}
	}
	for _, torch := range []string{"cholesky", "linalg.solve_triangular", "linalg.inv", "svd"} {
		m[torch] = func(b *builder) []value {
			refuse("matrix decompositions (%s)", torch)
			return nil
		}
	}
	return m
}

// einsum contracts two operands, or reduces and permutes one.
func einsum(b *builder) []value {
	xs := b.tensors(b.c.Input)
	spec, _ := b.arg(1).(string)
	left, out, ok := strings.Cut(strings.ReplaceAll(spec, " ", ""), "->")
	ins := strings.Split(left, ",")
	if !ok || len(xs) != len(ins) || len(xs) > 2 {
		refuse("einsum %q", spec)
	}
	drop := func(i int, keep string) {
		var axes []int64
		labels := ""
		for k, r := range ins[i] {
			if strings.ContainsRune(keep, r) {
				labels += string(r)
			} else {
				axes = append(axes, int64(k))
			}
		}
		xs[i], ins[i] = b.sum(xs[i], axes, false), labels
	}
	y, labels := xs[0], ""
	if len(xs) == 2 {
		drop(0, ins[1]+out)
		drop(1, ins[0]+out)
		var lb, rb, lc, rc []int64
		free := ""
		for k, r := range ins[0] {
			j := strings.IndexRune(ins[1], r)
			switch {
			case j < 0:
				free += string(r)
			case strings.ContainsRune(out, r):
				lb, rb, labels = append(lb, int64(k)), append(rb, int64(j)), labels+string(r)
			default:
				lc, rc = append(lc, int64(k)), append(rc, int64(j))
			}
		}
		labels += free
		for _, r := range ins[1] {
			if !strings.ContainsRune(ins[0], r) {
				labels += string(r)
			}
		}
		y = b.contract(xs[0], xs[1], lb, rb, lc, rc)
	} else {
		drop(0, out)
		y, labels = xs[0], ins[0]
	}
	var perm []int64
	for _, r := range out {
		perm = append(perm, int64(strings.IndexRune(labels, r)))
	}
	if len(perm) == 0 {
		return one(y)
	}
	return one(b.transpose(y, perm...))
}

func losses() map[string]operator {
	m := map[string]operator{}
	diff := func(f func(b *builder, d value) value) operator {
		return func(b *builder) []value { return one(b.reduction(f(b, b.sub(b.x(0), b.x(1))))) }
	}
	m["nn.functional.mse_loss"] = diff(func(b *builder, d value) value { return b.mul(d, d) })
	m["nn.functional.l1_loss"] = diff(func(b *builder, d value) value { return b.un("abs", d) })
	// huber: d²/2 below the limit, limit·(|d| - limit/2) above; smooth_l1 is that over the limit.
	huber := func(b *builder, d value, limit float64) value {
		a := b.un("abs", d)
		return b.choose(b.compare("lt", a, b.num(a, limit)), b.times(b.mul(d, d), 0.5), b.times(b.plus(a, -limit/2), limit))
	}
	m["nn.functional.huber_loss"] = diff(func(b *builder, d value) value { return huber(b, d, b.number(b.c.Kwargs["delta"], 1)) })
	m["nn.functional.smooth_l1_loss"] = diff(func(b *builder, d value) value {
		beta := b.number(b.c.Kwargs["beta"], 1)
		if beta == 0 {
			return b.un("abs", d)
		}
		return b.times(huber(b, d, beta), 1/beta)
	})
	m["nn.functional.binary_cross_entropy_with_logits"] = func(b *builder) []value {
		x, y := b.x(0), b.x(1)
		weight, pos := b.tensorOf(b.c.Kwargs["weight"]), b.tensorOf(b.c.Kwargs["pos_weight"])
		// (1-y)·x + (1 + (p-1)·y)·softplus(-x)
		rest := b.mul(b.plus(b.un("neg", y), 1), x)
		soft := b.un("softplus", b.un("neg", x))
		if pos != nil {
			soft = b.mul(b.plus(b.mul(b.plus(pos, -1), y), 1), soft)
		}
		loss := b.add(rest, soft)
		if weight != nil {
			loss = b.mul(loss, weight)
		}
		return one(b.reduction(loss))
	}
	m["nn.functional.kl_div"] = func(b *builder) []value {
		x, y := b.x(0), b.x(1)
		if b.flag(b.c.Kwargs["log_target"]) {
			return one(b.reduction(b.mul(b.un("exp", y), b.sub(y, x))))
		}
		// y·log y is 0 at 0.
		zero := b.num(y, 0)
		pos := b.compare("gt", y, zero)
		log := b.un("log", b.choose(pos, y, b.num(y, 1)))
		return one(b.reduction(b.sub(b.mul(y, log), b.mul(y, x))))
	}
	// nll of log-probabilities x [N,C,…] at labels [N,…]: weighted, and 0 where ignored.
	nll := func(b *builder, x value, labels []float64, shape []int64, weights value, ignore, smoothing float64, reduction string) value {
		channel := int64(1)
		if x.Type.Rank() == 1 {
			channel = 0
		}
		classes := x.Type.Shape[channel]
		hot := make([]float64, x.Type.Len())
		mask := make([]float64, len(labels))
		inner := int64(1)
		for _, d := range x.Type.Shape[channel+1:] {
			inner *= d
		}
		for i, l := range labels {
			if l == ignore || l < 0 || l >= float64(classes) {
				continue
			}
			mask[i] = 1
			for c := range classes {
				at := (int64(i)/inner*classes+c)*inner + int64(i)%inner
				if hot[at] = smoothing / float64(classes); float64(c) == l {
					hot[at] += 1 - smoothing
				}
			}
		}
		w := b.array(hot, x.Type.Shape...)
		counts := b.array(mask, shape...)
		if weights != nil {
			ws := slices.Repeat([]int64{1}, x.Type.Rank())
			ws[channel] = classes
			// The label's weight is that of its class, smoothing apart.
			pick := make([]float64, len(hot))
			for k, v := range hot {
				if v > 0.5 || smoothing == 0 && v > 0 {
					pick[k] = 1
				}
			}
			wx := b.reshape(weights, ws...)
			counts = b.sum(b.mul(b.array(pick, x.Type.Shape...), wx), []int64{channel}, false)
			w = b.mul(w, wx)
		}
		loss := b.un("neg", b.sum(b.mul(w, x), []int64{channel}, false))
		switch reduction {
		case "none":
			return loss
		case "sum":
			return b.sum(loss, allAxes(loss), false)
		}
		return b.div(b.sum(loss, allAxes(loss), false), b.sum(counts, allAxes(counts), false))
	}
	m["nn.functional.nll_loss"] = func(b *builder) []value {
		r, _ := b.c.Kwargs["reduction"].(string)
		return one(nll(b, b.x(0), b.numbers(b.arg(1)), b.x(1).Type.Shape, b.tensorOf(b.c.Kwargs["weight"]), b.number(b.c.Kwargs["ignore_index"], -100), 0, r))
	}
	m["nn.functional.cross_entropy"] = func(b *builder) []value {
		x, y := b.x(0), b.x(1)
		channel := int64(1)
		if x.Type.Rank() == 1 {
			channel = 0
		}
		lp := b.Op("log_softmax", []value{x}, ir.A("axis", channel))
		r, _ := b.c.Kwargs["reduction"].(string)
		weights, smoothing := b.tensorOf(b.param(2, "weight")), b.number(b.c.Kwargs["label_smoothing"], 0)
		if !isFloat(y) {
			return one(nll(b, lp, b.numbers(b.arg(1)), y.Type.Shape, weights, b.number(b.c.Kwargs["ignore_index"], -100), smoothing, r))
		}
		if smoothing != 0 {
			y = b.plus(b.times(y, 1-smoothing), smoothing/float64(x.Type.Shape[channel]))
		}
		if weights != nil {
			ws := slices.Repeat([]int64{1}, x.Type.Rank())
			ws[channel] = x.Type.Shape[channel]
			lp = b.mul(lp, b.reshape(weights, ws...))
		}
		loss := b.un("neg", b.sum(b.mul(y, lp), []int64{channel}, false))
		switch r {
		case "none":
			return one(loss)
		case "sum":
			return one(b.sum(loss, allAxes(loss), false))
		}
		s := b.sum(loss, allAxes(loss), false)
		return one(b.bin("div", s, b.num(s, float64(loss.Type.Len()))))
	}
	return m
}

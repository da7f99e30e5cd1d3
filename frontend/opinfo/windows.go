package opinfo

import (
	"math"
	"slices"

	"reprise/ir"
)

// windows are convolutions, pooling and resampling.
func windows() map[string]operator {
	m := map[string]operator{}
	bias := func(b *builder, y value, spatial int) value {
		if v := b.tensorOf(b.param(2, "bias")); v != nil {
			shape := slices.Repeat([]int64{1}, spatial+2)
			shape[1] = v.Type.Shape[0]
			y = b.add(y, b.reshape(v, shape...))
		}
		return y
	}
	batched := func(b *builder, x value, spatial int) (value, bool) { // adds a missing batch dimension
		if x.Type.Rank() == spatial+1 {
			return b.reshape(x, append([]int64{1}, x.Type.Shape...)...), true
		}
		return x, false
	}
	unbatch := func(b *builder, y value, added bool) []value {
		if added {
			y = b.reshape(y, y.Type.Shape[1:]...)
		}
		return one(y)
	}
	list := func(a any, n int, def int64) []int64 {
		if v := ints(a, n); len(v) > 0 {
			return v
		}
		return slices.Repeat([]int64{def}, n)
	}
	conv := func(n int) operator {
		return func(b *builder) []value {
			x, added := batched(b, b.x(0), n)
			w := b.x(1)
			stride, dilation := list(b.param(3, "stride"), n, 1), list(b.param(5, "dilation"), n, 1)
			groups := b.int(b.param(6, "groups"), 1)
			pad := make([]int64, 2*n)
			switch p := b.param(4, "padding").(type) {
			case string:
				for i := range n {
					if total := dilation[i] * (w.Type.Shape[2+i] - 1); p == "same" {
						pad[2*i], pad[2*i+1] = total/2, total-total/2
					}
				}
			default:
				for i, v := range list(p, n, 0) {
					pad[2*i], pad[2*i+1] = v, v
				}
			}
			y := b.Op("conv", []value{x, w}, ir.A("strides", stride), ir.A("padding", pad), ir.A("rhs_dilation", dilation), ir.A("feature_groups", groups))
			return unbatch(b, bias(b, y, n), added)
		}
	}
	m["nn.functional.conv1d"], m["nn.functional.conv2d"] = conv(1), conv(2)
	// The transposed convolution is the gradient of a convolution by its input: x spread
	// out by the stride, with the flipped kernel whose features are exchanged.
	m["nn.functional.conv_transpose2d"] = func(b *builder) []value {
		const n = 2
		x, added := batched(b, b.x(0), n)
		w := b.x(1) // [in, out/groups, …]
		stride, dilation := list(b.param(3, "stride"), n, 1), list(b.c.Kwargs["dilation"], n, 1)
		padding, extra := list(b.param(4, "padding"), n, 0), list(b.param(5, "output_padding"), n, 0)
		groups := b.int(b.param(6, "groups"), 1)
		ws := w.Type.Shape
		// [groups, in/groups, out/groups, …] to [groups·out/groups, in/groups, …]
		g := b.reshape(w, groups, ws[0]/groups, ws[1], ws[2], ws[3])
		w = b.reshape(b.transpose(g, 0, 2, 1, 3, 4), groups*ws[1], ws[0]/groups, ws[2], ws[3])
		pad := make([]int64, 2*n)
		for i := range n {
			full := dilation[i] * (ws[2+i] - 1)
			pad[2*i], pad[2*i+1] = full-padding[i], full-padding[i]+extra[i]
		}
		y := b.Op("conv", []value{x, w}, ir.A("padding", pad), ir.A("lhs_dilation", stride), ir.A("rhs_dilation", dilation), ir.A("feature_groups", groups), ir.A("reverse", true))
		return unbatch(b, bias(b, y, n), added)
	}
	// pooled is the padding for windows along the last two dimensions, with the extra at the
	// end that ceil_mode asks for.
	pooled := func(x value, kernel, stride, pad, dilation []int64, ceil bool) (padding []int64, out []int64) {
		r := x.Type.Rank()
		padding = make([]int64, 2*r)
		for i := range 2 {
			n, span := x.Type.Shape[r-2+i], dilation[i]*(kernel[i]-1)+1
			room := n + 2*pad[i] - span
			o := room/stride[i] + 1
			if ceil && room%stride[i] != 0 && o*stride[i] < n+pad[i] {
				o++
			}
			at := 2 * (r - 2 + i)
			padding[at] = pad[i]
			padding[at+1] = (o-1)*stride[i] + span - n - pad[i]
			out = append(out, o)
		}
		return padding, out
	}
	lastTwo := func(r int, v []int64) []int64 { return append(slices.Repeat([]int64{1}, r-2), v...) }
	m["nn.functional.max_pool2d"] = func(b *builder) []value {
		x, k := b.x(0), b.c.Kwargs
		r := x.Type.Rank()
		kernel := list(k["kernel_size"], 2, 1)
		stride := kernel
		if k["stride"] != nil {
			stride = list(k["stride"], 2, 1)
		}
		dilation := list(k["dilation"], 2, 1)
		pad, out := pooled(x, kernel, stride, list(k["padding"], 2, 0), dilation, b.flag(k["ceil_mode"]))
		if dilation[0] != 1 || dilation[1] != 1 {
			// The windows laid side by side, each without holes.
			lowest := b.reshape(b.array([]float64{math.Inf(-1)}))
			low, high := make([]int64, r), make([]int64, r)
			for d := range r {
				low[d], high[d] = pad[2*d], pad[2*d+1]
			}
			x = b.Op("pad", []value{x, lowest}, ir.A("low", low), ir.A("high", high))
			for i := range 2 {
				var idx []int64
				for o := range out[i] {
					for j := range kernel[i] {
						idx = append(idx, o*stride[i]+j*dilation[i])
					}
				}
				x = b.take(x, int64(r-2+i), idx)
			}
			return one(b.Op("max_pool", []value{x}, ir.A("window", lastTwo(r, kernel)), ir.A("strides", lastTwo(r, kernel))))
		}
		return one(b.Op("reduce_window", []value{x}, ir.A("kind", "max"), ir.A("window", lastTwo(r, kernel)), ir.A("strides", lastTwo(r, stride)), ir.A("padding", pad)))
	}
	m["nn.functional.avg_pool2d"] = func(b *builder) []value {
		x := b.x(0)
		r := x.Type.Rank()
		kernel := list(b.param(1, "kernel_size"), 2, 1)
		stride := kernel
		if s := ints(b.param(2, "stride"), 2); len(s) > 0 {
			stride = s
		}
		pad := list(b.param(3, "padding"), 2, 0)
		ceil := b.flag(b.param(4, "ceil_mode"))
		include := true
		if v, ok := b.param(5, "count_include_pad").(bool); ok {
			include = v
		}
		padding, out := pooled(x, kernel, stride, pad, []int64{1, 1}, ceil)
		sum := b.Op("reduce_window", []value{x}, ir.A("kind", "sum"), ir.A("window", lastTwo(r, kernel)), ir.A("strides", lastTwo(r, stride)), ir.A("padding", padding))
		// What a window's sum is divided by is known from its place.
		extent := func(i int, o int64) float64 {
			n := x.Type.Shape[r-2+i]
			lo := o*stride[i] - pad[i]
			hi := min(lo+kernel[i], n+pad[i])
			if !include {
				lo, hi = max(lo, 0), min(hi, n)
			}
			return float64(hi - lo)
		}
		factors := make([]float64, 0, out[0]*out[1])
		for p := range out[0] {
			for q := range out[1] {
				d := extent(0, p) * extent(1, q)
				if v, ok := b.param(6, "divisor_override").(float64); ok {
					d = v
				}
				factors = append(factors, d)
			}
		}
		return one(b.div(sum, b.array(factors, out...)))
	}
	m["nn.functional.adaptive_avg_pool2d"] = func(b *builder) []value {
		x := b.x(0)
		r := int64(x.Type.Rank())
		size, _ := b.param(1, "output_size").([]any)
		for i := range int64(2) {
			a := r - 2 + i
			n := x.Type.Shape[a]
			o := n
			if len(size) == 2 {
				o = b.int(size[i], n)
			} else if f, ok := b.param(1, "output_size").(float64); ok {
				o = int64(f)
			}
			w := make([]float64, n*o)
			for k := range o {
				lo, hi := k*n/o, ((k+1)*n+o-1)/o
				for j := lo; j < hi; j++ {
					w[j*o+k] = 1 / float64(hi-lo)
				}
			}
			x = b.alongAxis(x, a, b.array(w, n, o))
		}
		return one(x)
	}
	m["nn.functional.interpolate"] = interpolate
	m["nn.functional.pad"] = pad
	return m
}

// interpolate resamples each spatial axis: by index (nearest) or by a matrix of weights.
func interpolate(b *builder) []value {
	x := b.x(0)
	size, scale := b.param(1, "size"), b.param(2, "scale_factor")
	mode, _ := b.param(3, "mode").(string)
	align := b.flag(b.param(4, "align_corners"))
	spatial := x.Type.Rank() - 2
	for i := range spatial {
		a := int64(2 + i)
		n := x.Type.Shape[a]
		var out int64
		ratio := 0.0 // source step per result element
		if s := ints(size, spatial); len(s) > 0 {
			out = s[i]
			ratio = float64(n) / float64(out)
		} else {
			f := b.number(scale, 1)
			if l, ok := scale.([]any); ok {
				f = b.number(l[i], 1)
			}
			out = int64(math.Floor(float64(n) * f))
			ratio = 1 / f
		}
		if mode == "nearest" {
			idx := make([]int64, out)
			for k := range idx {
				idx[k] = min(int64(math.Floor(float64(float32(k)*float32(ratio)))), n-1)
			}
			x = b.take(x, a, idx)
			continue
		}
		w := make([]float64, n*out)
		for k := range out {
			at := (float64(k)+0.5)*ratio - 0.5
			if align {
				at = 0
				if out > 1 {
					at = float64(k) * float64(n-1) / float64(out-1)
				}
			}
			switch mode {
			case "linear", "bilinear", "trilinear":
				at = math.Max(at, 0)
				lo := min(int64(at), n-1)
				t := at - float64(lo)
				w[lo*out+k] += 1 - t
				w[min(lo+1, n-1)*out+k] += t
			case "bicubic":
				lo := math.Floor(at)
				t := at - lo
				for j, c := range cubic(t) {
					src := min(max(int64(lo)+int64(j)-1, 0), n-1)
					w[src*out+k] += c
				}
			case "area":
				lo, hi := k*n/out, ((k+1)*n+out-1)/out
				for j := lo; j < hi; j++ {
					w[j*out+k] = 1 / float64(hi-lo)
				}
			default:
				refuse("interpolation mode %q", mode)
			}
		}
		x = b.alongAxis(x, a, b.array(w, n, out))
	}
	return one(x)
}

// cubic is the four weights of cubic convolution with A = -0.75 at fraction t.
func cubic(t float64) [4]float64 {
	const A = -0.75
	near := func(x float64) float64 { return ((A+2)*x-(A+3))*x*x + 1 }
	far := func(x float64) float64 { return ((A*x-5*A)*x+8*A)*x - 4*A }
	return [4]float64{far(t + 1), near(t), near(1 - t), far(2 - t)}
}

func pad(b *builder) []value {
	x, widths := b.x(0), ints(b.arg(1), 1)
	mode, _ := b.param(2, "mode").(string)
	r := int64(x.Type.Rank())
	if mode == "" || mode == "constant" {
		low, high := make([]int64, r), make([]int64, r)
		for i := range len(widths) / 2 {
			low[r-1-int64(i)], high[r-1-int64(i)] = widths[2*i], widths[2*i+1]
		}
		v := b.array([]float64{b.number(b.param(3, "value"), 0)})
		return one(b.Op("pad", []value{x, b.reshape(v)}, ir.A("low", low), ir.A("high", high)))
	}
	for i := range len(widths) / 2 {
		a := r - 1 - int64(i)
		n := x.Type.Shape[a]
		var idx []int64
		cut, rest := max(0, -widths[2*i]), n-max(0, -widths[2*i])-max(0, -widths[2*i+1])
		for k := -widths[2*i]; k < n+widths[2*i+1]; k++ {
			j := k
			switch mode {
			case "reflect":
				if j < 0 {
					j = -j
				}
				if j >= n {
					j = 2*(n-1) - j
				}
			case "replicate":
				j = min(max(j, 0), n-1)
			case "circular":
				j = cut + ((j-cut)%rest+rest)%rest // what negative widths cut off does not come back
			default:
				refuse("padding mode %q", mode)
			}
			idx = append(idx, j)
		}
		x = b.take(x, a, idx)
	}
	return one(x)
}

package opinfo

import (
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
)

func shapes() map[string]operator {
	m := map[string]operator{}
	catAxis := func(xs []value, a int64) int64 {
		for _, x := range xs {
			if x.Type.Rank() > 0 {
				return axis(x, a)
			}
		}
		return 0
	}
	m["cat"] = func(b *builder) []value {
		xs := b.tensors(b.c.Input)
		return one(b.concat(catAxis(xs, b.int(b.param(1, "dim"), 0)), xs...))
	}
	m["stack"] = func(b *builder) []value {
		xs := b.tensors(b.c.Input)
		a := b.int(b.param(1, "dim"), 0)
		if a < 0 {
			a += int64(xs[0].Type.Rank() + 1)
		}
		var rows []value
		for _, x := range xs {
			rows = append(rows, b.reshape(x, slices.Insert(slices.Clone(x.Type.Shape), int(a), 1)...))
		}
		return one(b.concat(a, rows...))
	}
	cut := func(b *builder, x value, a int64, sizes []int64) []value {
		var out []value
		at := int64(0)
		for _, n := range sizes {
			out = append(out, b.slice(x, a, at, at+n))
			at += n
		}
		return out
	}
	pieces := func(n, size int64) []int64 {
		var out []int64
		for at := int64(0); at < n; at += size {
			out = append(out, min(size, n-at))
		}
		return out
	}
	m["split"] = func(b *builder) []value {
		x := b.x(0)
		a := axis(x, b.int(b.param(2, "dim"), 0))
		if size, ok := b.arg(1).(float64); ok {
			return cut(b, x, a, pieces(x.Type.Shape[a], int64(size)))
		}
		return cut(b, x, a, ints(b.arg(1), 1))
	}
	m["chunk"] = func(b *builder) []value {
		x := b.x(0)
		a := axis(x, b.int(b.param(2, "dim"), 0))
		n, k := x.Type.Shape[a], b.int(b.arg(1), 1)
		return cut(b, x, a, pieces(n, (n+k-1)/k))
	}
	reshape := func(b *builder) []value {
		x := b.x(0)
		shape, free, rest := ints(b.arg(1), 1), -1, int64(1)
		if y := b.tensorOf(b.arg(1)); y != nil {
			shape = slices.Clone(y.Type.Shape)
		}
		for i, d := range shape {
			if d < 0 {
				free = i
			} else {
				rest *= d
			}
		}
		if free >= 0 {
			shape[free] = x.Type.Len() / rest
		}
		return one(b.un("copy", b.reshape(x, shape...)))
	}
	m["reshape"], m["view"] = reshape, reshape
	m["transpose"] = func(b *builder) []value {
		x := b.x(0)
		perm := allAxes(x)
		if len(perm) > 0 {
			i, j := axis(x, b.int(b.arg(1), 0)), axis(x, b.int(b.arg(2), 0))
			perm[i], perm[j] = perm[j], perm[i]
		}
		return one(b.transpose(x, perm...))
	}
	m["permute"] = func(b *builder) []value {
		x := b.x(0)
		perm := ints(b.arg(1), 1)
		for i := range perm {
			perm[i] = axis(x, perm[i])
		}
		return one(b.transpose(x, perm...))
	}
	m["expand"] = func(b *builder) []value {
		x, shape := b.x(0), ints(b.arg(1), 1)
		if x.Type.Rank() == len(shape) || len(shape) > 0 {
			skip := len(shape) - x.Type.Rank()
			for i, d := range shape {
				if d < 0 {
					shape[i] = x.Type.Shape[i-skip]
				}
			}
		}
		return one(b.un("copy", b.expand(x, shape)))
	}
	m["squeeze"] = func(b *builder) []value {
		x := b.x(0)
		var shape []int64
		for i, d := range x.Type.Shape {
			if d != 1 || b.arg(1) != nil && axis(x, b.int(b.arg(1), 0)) != int64(i) {
				shape = append(shape, d)
			}
		}
		return one(b.un("copy", b.reshape(x, shape...)))
	}
	m["unsqueeze"] = func(b *builder) []value {
		x, a := b.x(0), b.int(b.arg(1), 0)
		if a < 0 {
			a += int64(x.Type.Rank() + 1)
		}
		return one(b.reshape(x, slices.Insert(slices.Clone(x.Type.Shape), int(a), 1)...))
	}
	m["flip"] = func(b *builder) []value {
		x := b.x(0)
		dims := ints(b.param(1, "dims"), 1)
		for i := range dims {
			dims[i] = axis(x, dims[i])
		}
		return one(b.Op("reverse", []value{x}, ir.A("dims", dims)))
	}
	m["roll"] = func(b *builder) []value {
		x := b.x(0)
		s := x.Type.Shape
		shifts, dims := ints(b.param(1, "shifts"), 1), ints(b.param(2, "dims"), 1)
		if len(dims) == 0 {
			x, dims = b.reshape(x, x.Type.Len()), []int64{0}
		}
		for i, a := range dims {
			a = axis(x, a)
			n := x.Type.Shape[a]
			if n == 0 {
				continue
			}
			k := ((shifts[i] % n) + n) % n
			if k > 0 {
				x = b.concat(a, b.slice(x, a, n-k, n), b.slice(x, a, 0, n-k))
			}
		}
		return one(b.un("copy", b.reshape(x, s...)))
	}
	m["narrow"] = func(b *builder) []value {
		x := b.x(0)
		a := axis(x, b.int(b.arg(1), 0))
		lo, n := b.int(b.arg(2), 0), b.int(b.arg(3), 0)
		if lo < 0 {
			lo += x.Type.Shape[a]
		}
		return one(b.slice(x, a, lo, lo+n))
	}
	at := func(b *builder, x value, a int64) (int64, int64) {
		a = axis(x, a)
		return a, x.Type.Shape[a]
	}
	m["select"] = func(b *builder) []value {
		x := b.x(0)
		a, n := at(b, x, b.int(b.arg(1), 0))
		i := b.int(b.arg(2), 0)
		if i < 0 {
			i += n
		}
		return one(b.reshape(b.slice(x, a, i, i+1), slices.Delete(slices.Clone(x.Type.Shape), int(a), int(a)+1)...))
	}
	m["select_scatter"] = func(b *builder) []value {
		x, src := b.x(0), b.x(1)
		a, n := at(b, x, b.int(b.arg(2), 0))
		i := b.int(b.arg(3), 0)
		if i < 0 {
			i += n
		}
		row := b.reshape(src, slices.Insert(slices.Clone(src.Type.Shape), int(a), 1)...)
		return one(b.concat(a, b.slice(x, a, 0, i), row, b.slice(x, a, i+1, n)))
	}
	triangle := func(dir string) operator {
		return func(b *builder) []value {
			x := b.x(0)
			r := x.Type.Rank()
			pos := func(d int) value {
				return b.Op("iota", nil, ir.A("dim", d), ir.A("shape", x.Type.Shape), ir.A("dtype", dtype.I64))
			}
			limit := b.plus(pos(r-2), float64(b.int(b.param(1, "diagonal"), 0)))
			return one(b.choose(b.compare(dir, pos(r-1), limit), x, b.num(x, 0)))
		}
	}
	m["tril"], m["triu"] = triangle("le"), triangle("ge")
	diagonal := func(b *builder, x value, offset int64) value {
		r := x.Type.Rank()
		rows, cols := x.Type.Shape[r-2], x.Type.Shape[r-1]
		var idx []int64
		for i := range rows {
			if j := i + offset; j >= 0 && j < cols {
				idx = append(idx, i*cols+j)
			}
		}
		flat := b.reshape(x, append(slices.Clone(x.Type.Shape[:r-2]), rows*cols)...)
		return b.take(flat, int64(r-2), idx)
	}
	m["diag"] = func(b *builder) []value {
		x, k := b.x(0), b.int(b.param(1, "diagonal"), 0)
		if x.Type.Rank() == 2 {
			return one(diagonal(b, x, k))
		}
		// A matrix with x on diagonal k: x at the right places of a flat one.
		n := x.Type.Shape[0]
		size := n + max(k, -k)
		low := max(k, 0) + max(-k, 0)*size
		zero := b.reshape(b.array([]float64{0}))
		total := size * size
		used := low
		if n > 0 {
			used = low + (n-1)*(size+1) + 1
		}
		flat := b.Op("pad", []value{x, zero}, ir.A("low", []int64{low}), ir.A("high", []int64{total - used}), ir.A("interior", []int64{size}))
		return one(b.reshape(flat, size, size))
	}
	m["diagonal"] = func(b *builder) []value {
		x := b.x(0)
		d1, d2 := axis(x, b.int(b.c.Kwargs["dim1"], 0)), axis(x, b.int(b.c.Kwargs["dim2"], 1))
		var perm []int64
		for _, a := range allAxes(x) {
			if a != d1 && a != d2 {
				perm = append(perm, a)
			}
		}
		return one(diagonal(b, b.transpose(x, append(perm, d1, d2)...), b.int(b.c.Kwargs["offset"], 0)))
	}
	m["trace"] = func(b *builder) []value { return one(b.sum(diagonal(b, b.x(0), 0), []int64{0}, false)) }
	repeat := func(b *builder) []value {
		x := b.x(0)
		times := ints(b.arg(1), 1)
		n := max(len(times), x.Type.Rank())
		times = append(slices.Repeat([]int64{1}, n-len(times)), times...)
		shape := append(slices.Repeat([]int64{1}, n-x.Type.Rank()), x.Type.Shape...)
		// Each dimension d becomes [times, d], then both are merged.
		var wide, final, dims []int64
		for i := range n {
			wide = append(wide, times[i], shape[i])
			dims = append(dims, int64(2*i+1))
			final = append(final, times[i]*shape[i])
		}
		y := b.Op("broadcast", []value{b.reshape(x, shape...)}, ir.A("dims", dims), ir.A("shape", wide))
		return one(b.reshape(y, final...))
	}
	m["repeat"], m["tile"] = repeat, repeat
	return m
}

func indexing() map[string]operator {
	m := map[string]operator{}
	vector := func(b *builder, x value) value { // a scalar as a vector
		if x.Type.Rank() == 0 {
			return b.reshape(x, 1)
		}
		return x
	}
	// fit cuts x to the shape of idx, but along axis a.
	fit := func(b *builder, x, idx value, a int64) value {
		limit := slices.Clone(x.Type.Shape)
		for d := range limit {
			if int64(d) != a {
				limit[d] = idx.Type.Shape[d]
			}
		}
		if slices.Equal(limit, x.Type.Shape) {
			return x
		}
		return b.Op("slice", []value{x}, ir.A("start", make([]int64, len(limit))), ir.A("limit", limit))
	}
	m["gather"] = func(b *builder) []value {
		x, idx := vector(b, b.x(0)), vector(b, b.x(2))
		a := axis(x, b.int(b.arg(1), 0))
		y := b.Op("take_along", []value{fit(b, x, idx, a), idx}, ir.A("axis", a))
		return one(b.reshape(y, b.x(2).Type.Shape...))
	}
	m["take_along_dim"] = func(b *builder) []value {
		x, idx := b.x(0), b.x(1)
		a := b.param(2, "dim")
		if a == nil {
			n := idx.Type.Len()
			return one(b.Op("take_along", []value{b.reshape(x, x.Type.Len()), b.reshape(idx, n)}, ir.A("axis", 0)))
		}
		ax := axis(x, b.int(a, 0))
		shape := broadcastShape(x.Type.Shape, idx.Type.Shape)
		xs, is := slices.Clone(shape), slices.Clone(shape)
		xs[ax], is[ax] = x.Type.Shape[ax], idx.Type.Shape[ax]
		return one(b.Op("take_along", []value{b.expand(x, xs), b.expand(idx, is)}, ir.A("axis", ax)))
	}
	// scatterAlong writes src at idx along an axis: op scatter on flat positions.
	scatterAlong := func(b *builder, x, idx, src value, a int64, kind string) value {
		// Flat position: that of the index's own coordinates with the one along a replaced.
		s := x.Type.Shape
		pos := b.num(idx, 0)
		stride := int64(1)
		for d := len(s) - 1; d >= 0; d-- {
			at := idx
			if int64(d) != a {
				at = b.Op("iota", nil, ir.A("dim", d), ir.A("shape", idx.Type.Shape), ir.A("dtype", dtype.I64))
			}
			pos = b.add(pos, b.times(at, float64(stride)))
			stride *= s[d]
		}
		n := idx.Type.Len()
		y := b.Op("scatter", []value{b.reshape(x, x.Type.Len()), b.reshape(pos, n), b.reshape(src, n)}, ir.A("kind", kind),
			ir.A("inserted_window_dims", []int64{0}), ir.A("scatter_dims_to_operand_dims", []int64{0}), ir.A("index_vector_dim", 1))
		return b.reshape(y, s...)
	}
	scatter := func(kind string) operator {
		return func(b *builder) []value {
			x, idx := vector(b, b.x(0)), vector(b, b.x(2))
			a := axis(x, b.int(b.arg(1), 0))
			src := b.tensorOf(b.arg(3))
			if src == nil {
				src = b.expand(b.reshape(b.array([]float64{b.number(b.arg(3), 0)})), idx.Type.Shape)
			} else {
				src = fit(b, vector(b, src), idx, -1)
			}
			k := kind
			switch b.c.Kwargs["reduce"] {
			case "add":
				k = "add"
			case "multiply":
				k = "mul"
			}
			return one(b.reshape(scatterAlong(b, x, idx, src, a, k), b.x(0).Type.Shape...))
		}
	}
	m["scatter"], m["scatter_add"] = scatter("set"), scatter("add")
	m["index_select"] = func(b *builder) []value {
		x, idx := vector(b, b.x(0)), vector(b, b.x(2))
		y := b.Op("take", []value{x, idx}, ir.A("axis", axis(x, b.int(b.arg(1), 0))))
		if b.x(0).Type.Rank() == 0 {
			y = b.reshape(y)
		}
		return one(y)
	}
	m["index_add"] = func(b *builder) []value {
		x, idx, src := vector(b, b.x(0)), vector(b, b.x(2)), vector(b, b.x(3))
		a := axis(x, b.int(b.arg(1), 0))
		sum := b.Op("take_grad", []value{b.times(src, b.number(b.c.Kwargs["alpha"], 1)), idx}, ir.A("axis", a), ir.A("size", x.Type.Shape[a]))
		return one(b.reshape(b.add(x, sum), b.x(0).Type.Shape...))
	}
	m["index_put"] = func(b *builder) []value {
		x, idx := b.x(0), b.tensors(b.arg(1))
		src := b.tensorOf(b.arg(2))
		if len(idx) != 1 || src == nil || idx[0].Type.Rank() != 1 {
			refuse("index_put with %d index tensors", len(idx))
		}
		list, _ := b.arg(1).([]any)
		at := b.numbers(list[0])
		i := idx[0]
		if i.Type.DType == dtype.Bool { // the places that are true
			var places []int64
			for k, v := range at {
				if v != 0 {
					places = append(places, int64(k))
				}
			}
			i = b.indices(places)
		}
		kind := "set"
		if b.flag(b.param(3, "accumulate")) {
			kind = "add"
		} else if slices.Sort(at); idx[0].Type.DType != dtype.Bool && len(slices.Compact(slices.Clone(at))) != len(at) {
			refuse("the gradient of values written to one place (PyTorch gives it to all of them)")
		}
		window := []int64{}
		for d := 1; d < x.Type.Rank(); d++ {
			window = append(window, int64(d))
		}
		src = b.expand(src, append(slices.Clone(i.Type.Shape), x.Type.Shape[1:]...))
		return one(b.Op("scatter", []value{x, i, src}, ir.A("kind", kind), ir.A("update_window_dims", window),
			ir.A("inserted_window_dims", []int64{0}), ir.A("scatter_dims_to_operand_dims", []int64{0}), ir.A("index_vector_dim", 1)))
	}
	m["sort"] = func(b *builder) []value {
		x := vector(b, b.x(0))
		descending := b.flag(b.param(2, "descending"))
		y := b.Op("sort", []value{x}, ir.A("axis", axis(x, b.int(b.param(1, "dim"), -1))), ir.A("descending", descending))
		return one(b.reshape(y, b.x(0).Type.Shape...))
	}
	m["topk"] = func(b *builder) []value {
		x := vector(b, b.x(0))
		a := axis(x, b.int(b.param(2, "dim"), -1))
		last := int64(x.Type.Rank() - 1)
		perm := allAxes(x)
		perm[a], perm[last] = perm[last], perm[a]
		if v, ok := b.param(3, "largest").(bool); ok && !v {
			refuse("topk of the smallest")
		}
		y := b.Multi("top_k", []value{b.transpose(x, perm...)}, nil, ir.A("k", b.int(b.arg(1), 1))).Results[0]
		y = b.transpose(y, perm...)
		if b.x(0).Type.Rank() == 0 {
			y = b.reshape(y)
		}
		return one(y)
	}
	return m
}

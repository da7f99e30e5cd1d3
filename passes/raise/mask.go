package raise

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/tensor"
)

// Limits on a mask that is computed to see what it is: elements of one value, and values.
const (
	maxMask    = 1 << 22
	maxMaskOps = 48
)

// mask matches a causal mask on scores (or one that hides nothing), as select or as a sum with 0 and large
// negative numbers: what is masked.
func (a *attend) mask(s operand, free []int) (x *ir.Value) {
	a.m.try(func() bool {
		op := a.m.op(s.v, "select", "add")
		if op == nil {
			return false
		}
		n := len(a.m.in) // the mask itself may have other readers
		defer func() { a.m.in = a.m.in[:n] }()
		if op.Name() == "select" {
			p := a.m.peel(whole(op.Operands[0]))
			for i := 1; i <= 2; i++ {
				if k, ok := splat(op.Operands[i]); ok && a.hides(k) && a.visible(p, s.label, free, i == 2) {
					x = op.Operands[3-i]
					return true
				}
			}
			return false
		}
		for i := range 2 {
			if a.additive(a.m.peel(whole(op.Operands[i])), s.label, free) {
				x = op.Operands[1-i]
				return true
			}
		}
		return false
	})
	return x
}

// hides: the exponential of a score that k replaces, or that k is added to, is zero.
func (a *attend) hides(k float64) bool { return k*a.scale <= masked }

// visible matches a predicate that is when where a query sees a key.
func (a *attend) visible(p at, label, free []int, when bool) bool {
	if op := p.v.Op; op != nil && op.Name() == "not" {
		return a.visible(a.m.peel(at{op.Operands[0], p.view}), label, free, !when)
	}
	if a.ordered(p, label, free, when) {
		return true
	}
	t := a.m.value(p.v)
	if t == nil {
		return false
	}
	return a.table(t, p, label, free, func(i int64) (sees, hidden bool) {
		on := t.Bits(i) != 0
		return on == when, on != when
	})
}

// additive matches a number that is 0 where a query sees a key, and hides it elsewhere.
func (a *attend) additive(p at, label, free []int) bool {
	if op := p.v.Op; op != nil && op.Name() == "select" {
		yes, ok := splat(op.Operands[1])
		no, ok2 := splat(op.Operands[2])
		pred := a.m.peel(at{op.Operands[0], p.view})
		if ok && ok2 && yes == 0 && a.hides(no) && a.visible(pred, label, free, true) {
			return true
		}
		if ok && ok2 && no == 0 && a.hides(yes) && a.visible(pred, label, free, false) {
			return true
		}
	}
	t := a.m.value(p.v)
	if t == nil || !t.DType.IsFloat() {
		return false
	}
	return a.table(t, p, label, free, func(i int64) (sees, hidden bool) {
		x := number(t, i)
		return x == 0, a.hides(x)
	})
}

// ordered matches a comparison of a query's index with a key's, shifted by constants.
func (a *attend) ordered(p at, label, free []int, when bool) bool {
	op := p.v.Op
	if op == nil || op.Name() != "compare" || !op.In(0).DType.IsInt() {
		return false
	}
	l, lo, ok := a.index(at{op.Operands[0], p.view}, label)
	r, ro, ok2 := a.index(at{op.Operands[1], p.view}, label)
	if !ok || !ok2 {
		return false
	}
	dir := op.Attrs.Str("dir")
	if l == a.j { // turn it round: query on the left
		l, r, lo, ro = r, l, ro, lo
		dir = map[string]string{"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}[dir]
	}
	if r != a.j || !slices.Contains(free, l) {
		return false
	}
	if !when {
		dir = map[string]string{"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[dir]
	}
	off := lo - ro // i + lo dir j + ro: j ≤ i + off
	switch dir {
	case "ge":
	case "gt":
		off--
	default:
		return false
	}
	return off == a.size[a.j]-a.size[l] && a.setQuery(l)
}

// setQuery: l is the label of queries.
func (a *attend) setQuery(l int) bool {
	if a.i != missing && a.i != l {
		return false
	}
	a.i, a.causal = l, true
	return true
}

// index matches an index along one dimension, plus a constant.
func (a *attend) index(c at, label []int) (l int, offset int64, ok bool) {
	for range 8 {
		c = a.m.peel(c)
		op := c.v.Op
		if op == nil {
			return 0, 0, false
		}
		switch op.Name() {
		case "iota":
			i := slices.Index(long(op.Out(0).Shape), op.Attrs.Int("dim"))
			if i < 0 {
				return 0, 0, false
			}
			return label[c.view[i]], offset, true
		case "convert":
			if !op.In(0).DType.IsInt() || !op.Out(0).DType.IsInt() || op.Out(0).DType.Size() < 4 {
				return 0, 0, false
			}
			c.v = op.Operands[0]
		case "add", "sub":
			x, k, sign := op.Operands[0], op.Operands[1], 1.0
			if op.Name() == "sub" {
				sign = -1
			} else if _, ok := splat(k); !ok {
				x, k = k, x
			}
			n, ok := splat(k)
			if !ok || math.Abs(n) > 1<<30 {
				return 0, 0, false
			}
			offset += int64(sign * n)
			c.v = x
		default:
			return 0, 0, false
		}
	}
	return 0, 0, false
}

// table compares a mask that is known with the causal one, and with one that hides nothing.
func (a *attend) table(t *tensor.Tensor, p at, label, free []int, at func(i int64) (sees, hidden bool)) bool {
	all := true
	for i := range t.Len() {
		if sees, _ := at(i); !sees {
			all = false
			break
		}
	}
	if all {
		return true
	}
	for _, l := range free {
		if a.i != missing && a.i != l || a.size[l] == 1 && a.size[a.j] == 1 {
			continue
		}
		if a.isCausal(t, p, label, l, at) {
			return a.setQuery(l)
		}
	}
	return false
}

func (a *attend) isCausal(t *tensor.Tensor, p at, label []int, query int, at func(i int64) (sees, hidden bool)) bool {
	// idx counts through t; its dimensions of size 1 are not in the view.
	idx, dims := make([]int64, len(t.Shape)), long(t.Shape)
	more := a.size[a.j] - a.size[query]
	for flat := range t.Len() {
		var i, j int64
		for k, d := range dims {
			switch label[p.view[k]] {
			case query:
				i = idx[d]
			case a.j:
				j = idx[d]
			}
		}
		if sees, hidden := at(flat); j <= i+more && !sees || j > i+more && !hidden {
			return false
		}
		for d := len(idx) - 1; d >= 0; d-- {
			if idx[d]++; idx[d] < t.Shape[d] {
				break
			}
			idx[d] = 0
		}
	}
	// A mask that lacks one of the dimensions can't be causal, unless that has size 1.
	has := func(l int) bool {
		return a.size[l] == 1 || slices.ContainsFunc(p.view, func(d int64) bool { return label[d] == l })
	}
	return has(query) && has(a.j)
}

// value is known, computed once for all that are the same.
func (s *scope) value(v *ir.Value) *tensor.Tensor {
	v = s.same(v)
	t, done := s.known[v]
	if !done {
		t = known(v)
		s.known[v] = t
	}
	return t
}

// known computes a value that depends on nothing but constants, within limits; else nil.
func known(v *ir.Value) *tensor.Tensor {
	if v.Op != nil && v.Op.Name() == "constant" {
		if t := v.Op.Attrs.Tensor("value"); t.DType != dtype.Key && t.Len() <= maxMask {
			return t
		}
		return nil
	}
	f := ir.NewModule("mask").NewFunc("mask")
	to := ir.Mapping{}
	var visit func(v *ir.Value) bool
	visit = func(v *ir.Value) bool {
		if to[v] != nil {
			return true
		}
		op := v.Op
		if op == nil || len(f.Body.Ops) >= maxMaskOps || v.Type.Len() > maxMask || len(op.Results) != 1 || len(op.Regions) > 0 ||
			op.Effect() != ir.EffectNone || op.Det() != ir.Exact {
			return false
		}
		for _, o := range op.Operands {
			if !visit(o) {
				return false
			}
		}
		f.Body.CloneOp(op, to)
		return true
	}
	if !visit(v) || v.Type.DType == dtype.Key {
		return nil
	}
	f.Body.Results = []*ir.Value{to[v]}
	out, err := interp.Run(f, nil)
	if err != nil {
		return nil
	}
	return out[0]
}

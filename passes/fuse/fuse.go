// Package fuse lets a reader compute a cheap operand for itself: what makes the operand moves into the
// reader, which computes it while it reads (a contraction, while it packs), so that the operand takes no
// memory. Every op rounds to its element type, fused or not, so no bit changes. What moves is
// elementwise: activations, casts, dropout, the application of a norm. Reductions stay where they are;
// the row statistics that they make are results of their own, small, and are read.
//
// The pass knows what can be fused and how; whether it pays is decided by who plans (internal/compile), as
// the answer is a matter of bytes and time.
package fuse

import (
	"fmt"
	"slices"
	"strings"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/passes/dce"
	"reprise/passes/lower"
	"reprise/passes/pinned"
)

const (
	maxSlice  = 64   // ops that one operand may bring along
	maxOps    = 160  // ops of a unit, as in package group
	maxLeaves = 28   // buffers that a unit reads, as in package group
	minLen    = 1024 // elements of a value below which nothing is saved
	// smallShare: a value of at most this share of another (a row statistic) is not worth computing again.
	smallShare = 16
)

// Site is a value that one of its readers could compute for itself, by the ids of both: they are the
// same in every copy of a function.
type Site struct {
	Value, Producer, Reader int
	Class                   string   // sites of one class are about values that are computed alike
	Ops                     []*ir.Op // what computes the value, of the function that was searched
	Bytes                   int64    // of the value
}

// Sites finds what can be fused in a function that is grouped, in program order.
func Sites(f *ir.Func) []Site {
	held := map[*ir.Value]bool{} // in memory whatever its readers do: returned, or marked by the model, if as another shape
	for _, v := range f.Body.Results {
		held[root(v)] = true
	}
	for _, op := range f.Body.Ops {
		for _, v := range op.Results {
			if v.Marked() {
				held[root(v)] = true
			}
		}
	}
	found := map[*ir.Value]*slice{}
	made := pinned.Decisions(f.Body)
	var out []Site
	for _, r := range f.Body.Ops {
		for i, v := range r.Operands {
			v = root(v)
			if v.Op == nil || held[v] || made[v.Op] != nil || // a decision is made once
				slices.ContainsFunc(r.Operands[:i], func(u *ir.Value) bool { return root(u) == v }) || !reads(r, v) {
				continue
			}
			s, ok := found[v]
			if !ok {
				s = sliceOf(v)
				found[v] = s
			}
			if s == nil || !s.fits(r) {
				continue
			}
			out = append(out, Site{v.ID, v.Op.ID, r.ID, class(s), s.ops, v.Type.Bytes()})
		}
	}
	return out
}

// root is v, or what v is another shape of.
func root(v *ir.Value) *ir.Value {
	for v.Op != nil && v.Op.Name() == "reshape" {
		v = v.Op.Operands[0]
	}
	return v
}

// slice is how a value is computed elementwise: ops of its producer, in order, over leaves.
type slice struct {
	v    *ir.Value
	ops  []*ir.Op
	leaf []*ir.Value // as the ops know them: parameters of the producer's region and values cut in it; operands
	cut  []*ir.Value // the leaves that are made in the producer's region: row statistics
}

// elementwise ops read each operand at the result's own index.
func elementwise(op *ir.Op) bool {
	if op.Family() != "elementwise" && op.Family() != "random" || op.Def.Elem == nil || len(op.Results) != 1 || len(op.Regions) > 0 ||
		op.Effect() != ir.EffectNone || op.Det() != ir.Exact && op.Det() != ir.Keyed {
		return false
	}
	for _, v := range op.Operands {
		if v.Type.Rank() != 0 && !slices.Equal(v.Type.Shape, op.Out(0).Shape) {
			return false
		}
	}
	return true
}

// mapOp tells whether op may be computed again wherever its value is read.
func mapOp(op *ir.Op) bool {
	switch op.Name() {
	case "constant":
		return !lower.IsConstant(op)
	case "broadcast", "iota", "reshape":
		return true
	}
	return elementwise(op)
}

// sliceOf finds how v is computed elementwise; nil where it is not.
func sliceOf(v *ir.Value) *slice {
	p := v.Op
	if v.Type.Len() < minLen || v.Type.DType == dtype.Key {
		return nil
	}
	s := &slice{v: v}
	if p.Name() != "fused" {
		if !elementwise(p) {
			return nil
		}
		s.ops = []*ir.Op{p}
		for _, o := range p.Operands {
			if !slices.Contains(s.leaf, o) {
				s.leaf = append(s.leaf, o)
			}
		}
		if !s.worth() {
			return nil
		}
		return s
	}
	region := p.Regions[0]
	reduced := map[*ir.Op]bool{} // made of a reduction or a contraction
	for _, o := range region.Ops {
		reduced[o] = !mapOp(o)
		for _, x := range o.Operands {
			reduced[o] = reduced[o] || x.Op != nil && reduced[x.Op]
		}
	}
	in := map[*ir.Op]bool{}
	ok := true
	var visit func(x *ir.Value)
	visit = func(x *ir.Value) {
		switch {
		case x.Op == nil, x.Op != nil && reduced[x.Op] && x.Type.Len()*smallShare <= v.Type.Len():
			if !slices.Contains(s.leaf, x) {
				s.leaf = append(s.leaf, x)
				if x.Op != nil {
					s.cut = append(s.cut, x)
				}
			}
		case in[x.Op]:
		case !mapOp(x.Op):
			ok = false
		default:
			in[x.Op] = true
			for _, y := range x.Op.Operands {
				visit(y)
			}
		}
	}
	visit(region.Results[v.Index])
	for _, o := range region.Ops {
		if in[o] {
			s.ops = append(s.ops, o)
		}
	}
	if !ok || len(s.ops) == 0 || len(s.ops) > maxSlice || !s.worth() {
		return nil
	}
	return s
}

// worth: reading the leaves does not take much more than reading the value.
func (s *slice) worth() bool {
	n := int64(0)
	for _, x := range s.leaf {
		if x.Type.Len()*smallShare > s.v.Type.Len() {
			n += x.Type.Bytes()
		}
	}
	return n <= 2*s.v.Type.Bytes()
}

// top is a leaf as the value of the function's body that holds it, nil for a cut that is no result yet.
func (s *slice) top(x *ir.Value) *ir.Value {
	p := s.v.Op
	switch {
	case p.Name() != "fused":
		return x
	case x.Op == nil:
		return p.Operands[x.Index]
	}
	if i := slices.Index(p.Regions[0].Results, x); i >= 0 {
		return p.Results[i]
	}
	return nil
}

// fits: with the slice, the reader stays of a size that a kernel may have.
func (s *slice) fits(r *ir.Op) bool {
	n := 1
	if r.Name() == "fused" {
		n = len(r.Regions[0].Ops)
	}
	return n+len(s.ops) <= maxOps && len(r.Operands)+len(s.leaf) <= maxLeaves
}

// reads tells whether r reads v in a way that lets it compute v for itself: as an operand of its
// contraction and nothing else, or at the index of its own elements.
func reads(r *ir.Op, v *ir.Value) bool {
	switch r.Name() {
	case "fused":
	case "contract":
		return lower.Contractable(r)
	case "reduce":
		return true
	default:
		return elementwise(r)
	}
	ops := r.Regions[0].Ops
	contracts := slices.ContainsFunc(ops, func(o *ir.Op) bool { return o.Name() == "contract" })
	var ok func(x *ir.Value) bool
	ok = func(x *ir.Value) bool {
		for _, o := range ops {
			if !slices.Contains(o.Operands, x) {
				continue
			}
			switch {
			case o.Name() == "reshape":
				if !ok(o.Results[0]) {
					return false
				}
			case contracts:
				if o.Name() != "contract" || !lower.Contractable(o) {
					return false
				}
			case o.Name() != "reduce" && !elementwise(o):
				return false
			}
		}
		return !slices.Contains(r.Regions[0].Results, x)
	}
	for i, x := range r.Operands {
		if root(x) == v && !ok(r.Regions[0].Params[i]) {
			return false
		}
	}
	return true
}

// class is a text that is equal for values that are computed alike: the type and the ops but for their order,
// constants and broadcasts left out.
func class(s *slice) string {
	var names []string
	for _, o := range s.ops {
		switch o.Name() {
		case "constant", "broadcast", "reshape", "iota":
		default:
			names = append(names, o.Name())
		}
	}
	slices.Sort(names)
	return fmt.Sprintf("%v %s", s.v.Type, strings.Join(names, " "))
}

// Folded tells what became of a site.
type Folded struct {
	Value  *ir.Value // as it was
	Reader *ir.Op
}

// Fold lets the readers of the sites compute the values for themselves, in place, and removes what
// nothing reads any more. Readers and producers keep their ids, and readers their results. It must come
// before planning: a producer may get a row statistic as one more result, or lose the value.
func Fold(f *ir.Func, t *ir.Table, sites []Site) []Folded {
	values, ops := map[int]*ir.Value{}, map[int]*ir.Op{}
	for _, op := range f.Body.Ops {
		ops[op.ID] = op
		for _, r := range op.Results {
			values[r.ID] = r
		}
	}
	want := map[*ir.Value]bool{}
	for _, s := range sites {
		want[values[s.Value]] = true
	}
	// Cuts become results, so that they can be read.
	cuts := map[*ir.Op][]*ir.Value{}
	for _, op := range f.Body.Ops {
		for _, r := range op.Results {
			if !want[r] {
				continue
			}
			s := sliceOf(r)
			for _, x := range s.cut {
				if s.top(x) == nil && !slices.Contains(cuts[op], x) {
					cuts[op] = append(cuts[op], x)
				}
			}
		}
	}
	for _, op := range slices.Clone(f.Body.Ops) {
		if more := cuts[op]; len(more) > 0 {
			region := op.Regions[0]
			for _, r := range results(f, t, op, append(slices.Clone(region.Results), more...)) {
				values[r.ID] = r
			}
		}
	}
	var out []Folded
	// From the end, so that a reader takes over what a producer does, not what that took over itself.
	for i := len(f.Body.Ops) - 1; i >= 0; i-- {
		r := f.Body.Ops[i]
		var vs []*ir.Value
		for _, s := range sites {
			if s.Reader == r.ID {
				vs = append(vs, values[s.Value])
			}
		}
		if len(vs) == 0 {
			continue
		}
		Into(f, t, r, vs)
		for _, v := range vs {
			out = append(out, Folded{v, r})
		}
	}
	shrink(f, t)
	return out
}

// results replaces a fused op by one that yields the given values of its region; results that stay
// keep their id and name. It gives the new results.
func results(f *ir.Func, t *ir.Table, op *ir.Op, yield []*ir.Value) []*ir.Value {
	region := op.Regions[0]
	types := make([]ir.Type, len(yield))
	for i, x := range yield {
		types[i] = x.Type
	}
	n := f.NewOp(t.Must("fused"), op.Operands, types, op.Attrs, op.Regions, op.Loc)
	n.ID, n.Remat, n.Block = op.ID, op.Remat, op.Block
	to := ir.Mapping{}
	for i, x := range yield {
		r := n.Results[i]
		r.Block = op.Block
		if j := slices.Index(region.Results, x); j >= 0 {
			old := op.Results[j]
			r.ID, r.Name, r.Attrs = old.ID, old.Name, old.Attrs
			to[old] = r
		}
	}
	region.Results = yield
	b := op.Block
	b.Ops[slices.Index(b.Ops, op)] = n
	for _, o := range b.Ops {
		o.Operands = to.All(o.Operands)
	}
	b.Results = to.All(b.Results)
	return n.Results
}

// shrink removes dead ops, and results that nothing reads from fused ops.
func shrink(f *ir.Func, t *ir.Table) {
	dce.Block(f.Body)
	used := map[*ir.Value]bool{}
	for _, op := range f.Body.Ops {
		for _, v := range op.Operands {
			used[v] = true
		}
	}
	for _, v := range f.Body.Results {
		used[v] = true
	}
	for _, op := range slices.Clone(f.Body.Ops) {
		if op.Name() != "fused" || !slices.ContainsFunc(op.Results, func(r *ir.Value) bool { return !used[r] }) {
			continue
		}
		var yield []*ir.Value
		for i, r := range op.Results {
			if used[r] {
				yield = append(yield, op.Regions[0].Results[i])
			}
		}
		results(f, t, op, yield)
		dce.Block(op.Regions[0])
	}
}

// Into lets the reader r compute values that it reads for itself, in place: it becomes a fused op (or a
// larger one) with the same results. The values' leaves must be there where r stands.
func Into(f *ir.Func, t *ir.Table, r *ir.Op, vs []*ir.Value) {
	region := f.NewRegion()
	var operands []*ir.Value
	param := func(v *ir.Value) *ir.Value {
		i := slices.Index(operands, v)
		if i < 0 {
			i = len(operands)
			operands = append(operands, v)
			region.AddParam("", v.Type)
		}
		return region.Params[i]
	}
	computed := ir.Mapping{} // values of the body that are computed inside
	for _, v := range vs {
		s := sliceOf(v)
		inner := ir.Mapping{}
		for _, x := range s.leaf {
			inner[x] = param(s.top(x))
		}
		for _, o := range s.ops {
			c := region.CloneOp(o, inner)
			if v.Op.Remat != nil {
				c.Loc = c.Loc.With("remat")
			}
			c.Loc = c.Loc.With("fuse")
		}
		y := v
		if v.Op.Name() == "fused" {
			y = v.Op.Regions[0].Results[v.Index]
		}
		computed[v] = inner[y]
	}
	// in is an operand of r inside the region.
	var in func(v *ir.Value) *ir.Value
	in = func(v *ir.Value) *ir.Value {
		switch {
		case computed[v] != nil:
		case slices.Contains(vs, root(v)): // another shape of one
			m := ir.Mapping{v.Op.Operands[0]: in(v.Op.Operands[0])}
			region.CloneOp(v.Op, m)
			computed[v] = m[v]
		default:
			return param(v)
		}
		return computed[v]
	}
	inner := ir.Mapping{}
	if r.Name() == "fused" {
		for i, v := range r.Operands {
			inner[r.Regions[0].Params[i]] = in(v)
		}
		for _, o := range r.Regions[0].Ops {
			region.CloneOp(o, inner)
		}
		region.Results = inner.All(r.Regions[0].Results)
	} else {
		for _, v := range r.Operands {
			inner[v] = in(v)
		}
		c := region.CloneOp(r, inner)
		region.Results = c.Results
	}
	r.Def, r.Operands, r.Attrs, r.Regions = t.Must("fused"), operands, ir.Attrs{}, []*ir.Block{region}
	region.Owner = r
}

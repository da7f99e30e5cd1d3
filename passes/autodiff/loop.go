package autodiff

import (
	"slices"

	"reprise/ir"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// Loops. One of few turns, or of little work, is unrolled and then needs no rule. Any
// other with a known number of turns is rewritten to stack the values it carries into
// each turn (those that change), and its derivative is a loop that runs backwards over
// the stacks, each turn running the body forward again from them and then back. Nothing
// inside a turn is kept: memory is turns × carried bytes.

// Bounds of unrolling.
const (
	unrollTrips = 16
	unrollOps   = 4096
)

// loop is a while that keeps its carried values.
type loop struct {
	trips  int64
	n      int    // values that it carried before; then the counter, then the stacks
	varies []int  // carried values that change and that the backward loop reads, each with a stack, in order
	kept   []kept // decisions of the body, with the results that are their stacks, after those
}

// straightenLoop appends to b what replaces the loop op: its turns, or a loop that keeps
// its carried values. It returns what stands for the results.
// active tells the values that vary with what is differentiated by.
func (d *differ) straightenLoop(b *ir.Block, op *ir.Op, active map[*ir.Value]bool) ([]*ir.Value, error) {
	trips, ok := Trips(op)
	if !ok {
		return nil, opError(op, "a gradient is asked for through a loop whose number of turns is not known").
			WithHint("give the loop the attribute trips, or count with a constant start, step and limit")
	}
	body := op.Regions[1]
	if work := trips * int64(len(body.Ops)); trips <= unrollTrips && work <= unrollOps {
		vals := op.Operands
		for i := range trips {
			prov := "unroll"
			if i == 0 {
				prov = ""
			}
			vals = inline(b, body, vals, prov)
		}
		return vals, nil
	}
	if err := repeatable(op, body); err != nil {
		return nil, err
	}
	l := &loop{trips: trips, n: len(op.Operands)}
	decided := decisions(body)
	used, err := d.readBackwards(op, decided, l.activeCarried(op, func(v *ir.Value) bool { return active[v] }))
	if err != nil {
		return nil, err
	}
	for i, v := range body.Results {
		if v != body.Params[i] && used[i] {
			if !v.Type.DType.IsFloat() && !v.Type.DType.IsInt() && v.Type.DType.String() != "bool" {
				return nil, opError(op, "a gradient is asked for through a loop that changes a carried %v", v.Type).
					WithHint("carry a counter and fold it into the key inside of the loop (key_fold)")
			}
			l.varies = append(l.varies, i)
		}
	}
	bld := ir.NewBuilder(d.t, b, op.Loc)
	operands := append(slices.Clone(op.Operands), i64(bld, 0))
	for _, i := range l.varies {
		operands = append(operands, ops.Full(bld, stackType(op.In(i), trips), 0))
	}
	for k, v := range decided {
		if used[l.n+k] {
			l.kept = append(l.kept, kept{v, len(operands)})
			operands = append(operands, ops.Full(bld, stackType(v.Type, trips), 0))
		}
	}
	regions := make([]*ir.Block, 2)
	var vals ir.Mapping // of the body, the last
	for k, old := range op.Regions {
		r := d.f.NewRegion()
		for _, v := range operands {
			r.AddParam("", v.Type)
		}
		vals = inlineMap(r, old, r.Params[:l.n], "")
		r.Results = vals.All(old.Results)
		regions[k] = r
	}
	// The body also counts, and stores what it was given and what it decides.
	r := regions[1]
	in := ir.NewBuilder(d.t, r, op.Loc)
	counter := r.Params[l.n]
	r.Results = append(slices.Clone(r.Results), in.Op("add", []*ir.Value{counter, i64(in, 1)}))
	for k, i := range l.varies {
		r.Results = append(r.Results, push(in, r.Params[l.n+1+k], r.Params[i], counter))
	}
	for i := range l.kept {
		k := &l.kept[i]
		k.value = vals.Get(k.value)
		r.Results = append(r.Results, push(in, r.Params[k.result], k.value, counter))
	}
	kept := bld.Multi("while", operands, regions, ir.A("trips", trips))
	d.loops[kept] = l
	return kept.Results[:l.n], nil
}

// readBackwards tells the carried values, and then the decisions, that a turn of the
// backward loop reads, by writing one on trial.
func (d *differ) readBackwards(op *ir.Op, decided []*ir.Value, through []int) ([]bool, error) {
	body, trial := op.Regions[1], d.f.NewRegion()
	var outs, seeds, xs []*ir.Value
	for _, p := range body.Params {
		trial.AddParam("", p.Type)
	}
	carried := slices.Clone(trial.Params)
	vals, subst := inlineMap(trial, body, carried, "vjp"), ir.Mapping{}
	results := vals.All(body.Results)
	for _, v := range decided {
		subst[vals.Get(v)] = trial.AddParam("", v.Type)
	}
	for _, i := range through {
		if body.Results[i] != body.Params[i] {
			outs, seeds = append(outs, results[i]), append(seeds, trial.AddParam("", op.In(i)))
		}
		xs = append(xs, carried[i])
	}
	var err error
	if trial.Results, _, err = d.backward(trial, op, outs, seeds, xs, nil); err != nil {
		return nil, err
	}
	readInstead(trial, subst)
	used := make([]bool, len(carried)+len(decided))
	for _, o := range trial.Ops {
		for _, v := range o.Operands {
			if v.Op == nil && v.Block == trial && v.Index < len(used) {
				used[v.Index] = true
			}
		}
	}
	return used, nil
}

// stackType is the type of n values of type t.
func stackType(t ir.Type, n int64) ir.Type {
	return ir.T(t.DType, append([]int64{n}, t.Shape...)...)
}

// position is the start indices of entry k of a stack.
func position(b *ir.Builder, stack, k *ir.Value) []*ir.Value {
	at := []*ir.Value{k}
	for range stack.Type.Rank() - 1 {
		at = append(at, i64(b, 0))
	}
	return at
}

// push is stack with entry k replaced by v.
func push(b *ir.Builder, stack, v, k *ir.Value) *ir.Value {
	row := b.Op("reshape", []*ir.Value{v}, ir.A("shape", stackType(v.Type, 1).Shape))
	return b.Op("dynamic_update_slice", append([]*ir.Value{stack, row}, position(b, stack, k)...))
}

// entry is entry k of stack.
func entry(b *ir.Builder, stack, k *ir.Value) *ir.Value {
	sizes := slices.Clone(stack.Type.Shape)
	sizes[0] = 1
	row := b.Op("dynamic_slice", append([]*ir.Value{stack}, position(b, stack, k)...), ir.A("sizes", sizes))
	return b.Op("reshape", []*ir.Value{row}, ir.A("shape", sizes[1:]))
}

// loopGrad differentiates a loop that keeps its carried values.
//
// The backward loop carries: the turn k = trips-1 … 0; for each carried float that the
// derivative passes through its cotangent (of a value that never changes: the sum over
// the turns, starting with that of the loop's result); and, unchanged, the stacks and the
// values that never change.
func (d *differ) loopGrad(r *ops.Reverse, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	l, body := d.loops[op], op.Regions[1]
	through := l.activeCarried(op, r.Active)
	b := r.B
	stackOf := make(map[int]int, len(l.varies)) // carried value → its stack among the results
	for k, i := range l.varies {
		stackOf[i] = l.n + 1 + k
	}
	operands := []*ir.Value{i64(b, l.trips-1)}
	for _, i := range through {
		g := douts[i]
		if g == nil {
			g = ops.Full(b, op.Out(i), 0)
		}
		operands = append(operands, g)
	}
	fixed := len(operands)
	first := fixed + l.n // where the decisions' stacks begin
	for i := range l.n {
		if s, ok := stackOf[i]; ok {
			operands = append(operands, op.Results[s])
		} else { // never changes, or is not read: its first value stands for it
			operands = append(operands, op.Operands[i])
		}
	}
	for _, k := range l.kept {
		operands = append(operands, op.Results[k.result])
	}
	changes := func(i int) bool { return body.Results[i] != body.Params[i] }
	back := d.f.NewRegion()
	for _, v := range operands {
		back.AddParam("", v.Type)
	}
	loc := op.Loc.With("vjp")
	bb := ir.NewBuilder(d.t, back, loc)
	k, seeds := back.Params[0], back.Params[1:fixed]
	carried := slices.Clone(back.Params[fixed:first])
	for i := range carried {
		if _, ok := stackOf[i]; ok {
			carried[i] = entry(bb, carried[i], k)
		}
	}
	vals, decided := inlineUpTo(back, body, carried, l.n), ir.Mapping{}
	results := vals.All(body.Results[:l.n])
	var entries []*ir.Op
	for i, d := range l.kept {
		if v := vals[d.value]; v != nil {
			at := len(back.Ops)
			decided[v] = entry(bb, back.Params[first+i], k)
			entries = append(entries, back.Ops[at:]...)
			back.Ops = back.Ops[:at]
		}
	}
	var outs, outSeeds, xs []*ir.Value
	for j, i := range through {
		if changes(i) {
			outs, outSeeds = append(outs, results[i]), append(outSeeds, seeds[j])
		}
		xs = append(xs, carried[i])
	}
	finish := func(bld *ir.Builder, grads []*ir.Value, has []bool) []*ir.Value {
		next := []*ir.Value{bld.Op("sub", []*ir.Value{k, i64(bld, 1)})}
		for j, i := range through {
			g := grads[j]
			if !changes(i) { // the turns add up
				if g = seeds[j]; has[j] {
					g = bld.Op("add", []*ir.Value{seeds[j], grads[j]})
				}
			}
			next = append(next, g)
		}
		return append(next, back.Params[fixed:]...)
	}
	next, _, err := d.backward(back, op, outs, outSeeds, xs, finish)
	if err != nil {
		return nil, err
	}
	back.Results = next
	back.Ops = slices.Concat(entries, back.Ops)
	readInstead(back, decided)
	operands = dropUnread(back, operands, fixed)
	cond := d.f.NewRegion()
	for _, v := range operands {
		cond.AddParam("", v.Type)
	}
	cb := ir.NewBuilder(d.t, cond, loc)
	cond.Results = []*ir.Value{cb.Op("compare", []*ir.Value{cond.Params[0], i64(cb, 0)}, ir.A("dir", "ge"))}
	res := b.Multi("while", operands, []*ir.Block{cond, back}, ir.A("trips", l.trips))
	dins := make([]*ir.Value, len(op.Operands))
	for j, i := range through {
		dins[i] = res.Results[1+j]
	}
	return dins, nil
}

// dropUnread removes the carried values from index first on that the loop's body only hands
// on, so that they need not live until the loop ends. It returns the operands that stay.
func dropUnread(body *ir.Block, operands []*ir.Value, first int) []*ir.Value {
	read := map[*ir.Value]bool{}
	for _, op := range body.Ops {
		for _, v := range op.Operands {
			read[v] = true
		}
	}
	params, results, stay := body.Params[:first:first], body.Results[:first:first], operands[:first:first]
	for i := first; i < len(operands); i++ {
		if p := body.Params[i]; read[p] {
			p.Index = len(params)
			params, results, stay = append(params, p), append(results, body.Results[i]), append(stay, operands[i])
		}
	}
	body.Params, body.Results = params, results
	return stay
}

// inlineUpTo inlines the part of a rewritten body that computes its first n results.
func inlineUpTo(b *ir.Block, body *ir.Block, args []*ir.Value, n int) ir.Mapping {
	part := &ir.Block{Func: body.Func, Params: body.Params[:n], Ops: live(body.Ops, body.Results[:n])}
	return inlineMap(b, part, args, "vjp")
}

// activeCarried lists the carried floats that vary with an active operand.
func (l *loop) activeCarried(op *ir.Op, active func(*ir.Value) bool) []int {
	body := op.Regions[1]
	on := make([]bool, l.n)
	for i := range on {
		on[i] = op.In(i).DType.IsFloat() && active(op.Operands[i])
	}
	for changed := true; changed; {
		changed = false
		var xs []*ir.Value
		for i := range on {
			if on[i] {
				xs = append(xs, body.Params[i])
			}
		}
		act := activity(body.Ops, xs)
		for i := range on {
			if !on[i] && op.In(i).DType.IsFloat() && act[body.Results[i]] {
				on[i], changed = true, true
			}
		}
	}
	var list []int
	for i, o := range on {
		if o {
			list = append(list, i)
		}
	}
	return list
}

// i64 is an i64 constant.
func i64(b *ir.Builder, v int64) *ir.Value {
	return b.Op("constant", nil, ir.A("value", tensor.Of([]int64{v})))
}

// Trips is the number of turns of a while where it is known: its attribute, or a count
// from a constant, by a constant, while below (or above) a constant.
func Trips(op *ir.Op) (int64, bool) {
	if n := op.Attrs.Int("trips"); n > 0 {
		return n, true
	}
	cond, body := op.Regions[0], op.Regions[1]
	test := cond.Results[0].Op
	if test == nil || test.Name() != "compare" {
		return 0, false
	}
	// limitOf is the constant value of a value of the condition.
	limitOf := func(v *ir.Value) (int64, bool) {
		if v.Op == nil && body.Results[v.Index] == body.Params[v.Index] {
			v = op.Operands[v.Index]
		}
		return constInt(v)
	}
	dir, counter, bound := test.Attrs.Str("dir"), test.Operands[0], test.Operands[1]
	if counter.Op != nil || body.Results[counter.Index] == body.Params[counter.Index] {
		counter, bound = bound, counter
		dir = map[string]string{"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne", "eq": "eq"}[dir]
	}
	if counter.Op != nil {
		return 0, false
	}
	limit, ok1 := limitOf(bound)
	start, ok2 := constInt(op.Operands[counter.Index])
	by, ok3 := stepOf(body, counter.Index)
	if !ok1 || !ok2 || !ok3 || by == 0 {
		return 0, false
	}
	span := limit - start
	switch dir {
	case "le":
		span++
	case "ge":
		span--
	case "ne":
		if span%by != 0 {
			return 0, false
		}
	case "eq":
		return 0, false
	}
	if up := dir == "lt" || dir == "le"; up != (by > 0) && dir != "ne" {
		return 0, false
	}
	if by < 0 {
		span, by = -span, -by
	}
	if span < 0 && dir == "ne" {
		return 0, false
	}
	return max(0, (span+by-1)/by), true
}

// stepOf is what a body adds to its carried value i each turn.
func stepOf(body *ir.Block, i int) (int64, bool) {
	op, p := body.Results[i].Op, body.Params[i]
	if op == nil || op.Name() != "add" && op.Name() != "sub" {
		return 0, false
	}
	other := op.Operands[1]
	if op.Operands[0] != p {
		if op.Name() == "sub" || op.Operands[1] != p {
			return 0, false
		}
		other = op.Operands[0]
	}
	by, ok := constInt(other)
	if op.Name() == "sub" {
		by = -by
	}
	return by, ok
}

// constInt is the number of an integer constant of one element.
func constInt(v *ir.Value) (int64, bool) {
	if v.Op == nil || v.Op.Name() != "constant" || !v.Type.DType.IsInt() || v.Type.Len() != 1 {
		return 0, false
	}
	t := v.Op.Attrs.Tensor("value")
	if t.DType.Size() < 8 && t.DType.IsSigned() {
		shift := 64 - 8*t.DType.Size()
		return int64(t.Bits(0)<<shift) >> shift, true
	}
	return int64(t.Bits(0)), true
}

// Package remat turns a function into a planning problem, and a plan into a function: it
// states what the planner may do, and materialises what it decided. It makes no choice itself.
package remat

import (
	"container/heap"
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/cse"
	"reprise/passes/lower"
	"reprise/passes/pinned"
	"reprise/planner"
)

// Align is the granularity of memory: sizes are rounded up to it.
const Align = 64

// RoundUp rounds a number of bytes up to Align.
func RoundUp(n int64) int64 { return (n + Align - 1) / Align * Align }

// Costs tells what an op costs.
type Costs interface {
	// Nanoseconds that the op takes once.
	Nanoseconds(op *ir.Op, l *lower.Lowered) int64
	// Workspace bytes that the op needs in the arena beyond l.Workspaces.
	Workspace(op *ir.Op, l *lower.Lowered) int64
}

// Problem is a function as a planning problem, with the tables to go back.
type Problem struct {
	*planner.Problem
	Func     *ir.Func
	Ops      []*ir.Op              // by op index
	Values   []*ir.Value           // by value index
	Lowered  []*lower.Lowered      // by op index; nil for views and constants
	original [][]*ir.Value         // by op index: operands before any plan was applied
	InPlace  map[*ir.Op][][2]int   // state updates that overwrite the old value: (operand, result)
	Forward  []bool                // by op index: not made by differentiation, and independent of what was
	Pins     map[*ir.Op]pinned.Pin // ops that run once, with reasons
	NoCost   []string              // names of ops whose cost nobody declared
	Allowed  []*ir.Op              // ops that would be pinned but for Options.AllowRecompute
	Number   []int                 // by op index: the op's number, whatever was fused before planning
}

// Options of Build.
type Options struct {
	// AllowRecompute opts layers out of pinning: what decides there, has no fixed order or is a
	// collective may run again. What writes, reads hidden state or calls the host runs
	// once all the same. nil: no layer.
	AllowRecompute func(layer string) bool
	// Number gives every op, by its id, a number that is the same in every program of the model: where
	// ops were fused since they were numbered, some are missing. nil: they are numbered here.
	Number map[int]int
	// Known has ops, by id, that another problem stated as they are here: they are not lowered again.
	Known map[int]Known
	// Alike has what was stated of ops by their structure (cse.Structure), and is given what is stated now: layers that are
	// alike are lowered once. nil: of this call alone.
	Alike map[string]Known
}

// Known is an op as a problem states it.
type Known struct {
	Lowered         *lower.Lowered
	Cost, Workspace int64
	Results         int // of the op: one that lost or got a result is another op
}

// Known are the problem's ops, by id; p must not have been applied.
func (p *Problem) Known() map[int]Known {
	out := make(map[int]Known, len(p.Ops))
	for i, op := range p.Ops {
		out[op.ID] = Known{p.Lowered[i], p.Problem.Ops[i].Cost, p.Problem.Ops[i].Workspace, len(op.Results)}
	}
	return out
}

// Numbers numbers the ops of a grouped function by id, dense constants aside.
func Numbers(f *ir.Func) map[int]int {
	n := make(map[int]int, len(f.Body.Ops))
	for _, op := range f.Body.Ops {
		if !lower.IsConstant(op) {
			n[op.ID] = len(n)
		}
	}
	return n
}

// Ordinals are the numbers of the problem's ops.
func (p *Problem) Ordinals() map[*ir.Op]int {
	out := make(map[*ir.Op]int, len(p.Ops))
	for i, op := range p.Ops {
		out[op] = p.Number[i]
	}
	return out
}

// Det is the determinism of an op with its regions.
func Det(op *ir.Op) ir.Det {
	d := op.Det()
	for _, r := range op.Regions {
		r.Walk(func(o *ir.Op) { d = max(d, o.Det()) })
	}
	return d
}

// Effect is the effect of an op with its regions.
func Effect(op *ir.Op) ir.Effect {
	e := op.Effect()
	for _, r := range op.Regions {
		r.Walk(func(o *ir.Op) { e = max(e, o.Effect()) })
	}
	return e
}

// Build states the problem of planning f, which must be grouped. It refuses a function that
// was planned already. What is pinned is pinned in the problem itself, before any budget or
// policy: a plan that runs such an op twice is not a plan of it.
func Build(f *ir.Func, costs Costs, opt Options) (*Problem, error) {
	if f.Module.Attrs.Str("stage") == "planned" {
		return nil, diag.Errorf("planned", "module %q was planned already: planning needs the program as it was before", f.Module.Name).
			WithHint("give the model that this was made from, or the text of an earlier pass (--emit ir)")
	}
	p := &Problem{Problem: &planner.Problem{Name: f.Module.Name}, Func: f, InPlace: map[*ir.Op][][2]int{}}
	p.pin(opt)
	if opt.Number == nil {
		opt.Number = Numbers(f)
	}
	if opt.Alike == nil {
		opt.Alike = map[string]Known{}
	}
	index := make([]int, f.NumValues()) // by the id of a value
	add := func(v *ir.Value, pv planner.Value) {
		index[v.ID] = len(p.Values)
		p.Values = append(p.Values, v)
		pv.Name = v.Name
		p.Problem.Values = append(p.Problem.Values, pv)
	}
	for _, v := range f.Body.Params {
		add(v, planner.Value{Bytes: RoundUp(v.Type.Bytes()), Resident: true})
	}
	nextStorage := 1
	for _, op := range f.Body.Ops {
		if op.Remat != nil {
			return nil, diag.Errorf("planned", "@%s holds a clone: it was planned already", f.Name)
		}
		if lower.IsConstant(op) {
			// Dense constants stand in the program, not in the arena.
			add(op.Results[0], planner.Value{Resident: true})
			continue
		}
		po := planner.Op{Name: opName(op), Group: op.Loc.Layer, Det: detOf(Det(op)), Effect: effectOf(Effect(op))}
		if _, once := p.Pins[op]; once && !po.RunsOnce() {
			po.Det = planner.DetDecides
		} else if !once && po.RunsOnce() { // opted out
			po.Det, po.Effect = planner.DetExact, planner.EffectNone
		}
		for _, v := range op.Operands {
			po.Inputs = append(po.Inputs, index[v.ID])
		}
		var low *lower.Lowered
		view := lower.IsView(op)
		if known, ok := opt.Known[op.ID]; ok && !view && known.Results == len(op.Results) {
			low, po.Cost, po.Workspace = known.Lowered, known.Cost, known.Workspace
		} else if !view {
			known, err := opt.stateOp(op, costs)
			if err != nil {
				return nil, err
			}
			low, po.Cost, po.Workspace = known.Lowered, known.Cost, known.Workspace
		}
		unknown := op.Name() == "foreign" && op.Attrs.Int("cost_ns") < 0
		if unknown {
			p.NoCost = append(p.NoCost, op.Loc.Layer+":foreign "+op.Attrs.Str("symbol"))
		}
		for i, r := range op.Results {
			pv := planner.Value{Bytes: RoundUp(r.Type.Bytes())}
			if unknown { // who knows what a second run would take
				pv.Policy = planner.PreferSave
			}
			if view && residentConst(op.Operands[i]) {
				pv.Bytes = 0
			} else if view {
				src := &p.Problem.Values[index[op.Operands[i].ID]]
				if src.Storage == 0 {
					src.Storage = nextStorage
					nextStorage++
				}
				pv.Storage = src.Storage
			}
			add(r, pv)
			po.Outputs = append(po.Outputs, index[r.ID])
		}
		if low != nil {
			for _, pr := range low.InPlace {
				v := op.Operands[pr[0]]
				ip := [2]int{index[v.ID], index[op.Results[pr[1]].ID]}
				if v.Op != nil && !residentView(v) && !readsBeside(op, low, pr) && !slices.Contains(po.InPlace, ip) {
					po.InPlace = append(po.InPlace, ip)
				}
			}
		}
		p.Ops = append(p.Ops, op)
		p.Number = append(p.Number, opt.Number[op.ID])
		p.original = append(p.original, op.Operands)
		p.Lowered = append(p.Lowered, low)
		p.Problem.Ops = append(p.Problem.Ops, po)
	}
	for _, v := range f.Body.Results {
		if v.Op != nil {
			p.Problem.Values[index[v.ID]].Output = true
		}
	}
	p.stateUpdates(index)
	p.findPhases()
	return p, nil
}

// stateOp lowers an op and says what it takes.
func (o *Options) stateOp(op *ir.Op, costs Costs) (Known, error) {
	key := cse.Structure(op)
	if k, ok := o.Alike[key]; ok {
		return k, nil
	}
	low, err := LowerOrControl(op)
	if err != nil {
		return Known{}, err
	}
	k := Known{Lowered: low, Cost: costs.Nanoseconds(op, low), Workspace: RoundUp(costs.Workspace(op, low)), Results: len(op.Results)}
	for _, w := range low.Workspaces {
		k.Workspace += RoundUp(w)
	}
	o.Alike[key] = k
	return k, nil
}

// pin finds what runs once, and what would if its layer were not opted out.
func (p *Problem) pin(opt Options) {
	p.Pins = pinned.Of(p.Func.Body)
	defer p.pinMarked()
	if opt.AllowRecompute == nil {
		return
	}
	for _, op := range p.Func.Body.Ops {
		if why, ok := p.Pins[op]; ok && why.Allowable(op) && opt.AllowRecompute(op.Loc.Layer) {
			delete(p.Pins, op)
			p.Allowed = append(p.Allowed, op)
		}
	}
}

// AllowedLayers lists the layers of Allowed in the program's order.
func (p *Problem) AllowedLayers() []string {
	var out []string
	for _, op := range p.Allowed {
		if !slices.Contains(out, op.Loc.Layer) {
			out = append(out, op.Loc.Layer)
		}
	}
	return out
}

// residentView: v is memory that lives through the step, or a view of it, or a constant.
func residentView(v *ir.Value) bool {
	v = base(v)
	return v.Op == nil || lower.IsConstant(v.Op)
}

// residentConst: v is a constant, or a view of one.
func residentConst(v *ir.Value) bool {
	v = base(v)
	return v.Op != nil && lower.IsConstant(v.Op)
}

// LowerOrControl is lower.Op; control flow has its own lowering (package buffer), which needs
// no kernel here.
func LowerOrControl(op *ir.Op) (*lower.Lowered, error) {
	switch op.Name() {
	case "while", "if", "case":
		return &lower.Lowered{}, nil
	}
	return lower.Op(op)
}

// stateUpdates finds the ops that may write a state's new value over the old one: the new value
// is a result of an op that reads the old one element by element, and no other reader of the old value
// has to come after it.
func (p *Problem) stateUpdates(index []int) {
	f := p.Func
	opIndex := make([]int, f.NumOps()) // by the id of an op; −1: a dense constant
	for i := range opIndex {
		opIndex[i] = -1
	}
	for i, op := range p.Ops {
		opIndex[op.ID] = i
	}
	readers := make([][]*ir.Op, f.NumValues()) // by the id of a value
	var note func(v *ir.Value, op *ir.Op)
	note = func(v *ir.Value, op *ir.Op) {
		readers[v.ID] = append(readers[v.ID], op)
		if v.Op != nil && lower.IsView(v.Op) {
			note(v.Op.Operands[v.Index], op)
		}
	}
	users := make([][]*ir.Op, f.NumOps()) // by the id of an op
	var effect *ir.Op                     // the last before
	for _, op := range p.Ops {
		if Effect(op) != ir.EffectNone {
			if effect != nil {
				users[effect.ID] = append(users[effect.ID], op)
			}
			effect = op
		}
		for _, v := range op.Operands {
			note(v, op)
			if v.Op != nil {
				users[v.Op.ID] = append(users[v.Op.ID], op)
			}
		}
	}
	taken := map[*ir.Value]bool{}
	params, returned, joined := f.ParamsByName(), map[*ir.Value]int{}, storages{}
	for _, v := range f.Body.Results {
		returned[base(v)]++
	}
	for i, name := range f.Results {
		old, v := params[name], base(f.Body.Results[i]) // it may be returned in another shape
		if old == nil || !old.IsState() || v.Op == nil || taken[v] {
			continue
		}
		taken[v] = true
		op := v.Op
		at := opIndex[op.ID]
		if at < 0 || p.Lowered[at] == nil { // a dense constant
			continue
		}
		low := p.Lowered[at]
		pair, ok := [2]int{}, false
		for _, pr := range low.InPlace {
			if op.Operands[pr[0]] == old && op.Results[pr[1]] == v && !ok {
				pair, ok = pr, true
			}
		}
		if !ok || returned[old] > 0 || readsBeside(op, low, pair) {
			continue
		}
		// A reader that the update leads to must see the old value: then it is kept.
		after := map[*ir.Op]bool{}
		stack := []*ir.Op{op}
		for len(stack) > 0 {
			o := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, u := range users[o.ID] {
				if !after[u] {
					after[u] = true
					stack = append(stack, u)
				}
			}
		}
		for _, r := range readers[old.ID] {
			ok = ok && !after[r]
		}
		if !ok {
			continue
		}
		// Every other reader comes first; further updates must not contradict that.
		for _, r := range readers[old.ID] {
			if r != op {
				users[r.ID] = append(users[r.ID], op)
			}
		}
		po := &p.Problem.Ops[at]
		// Overwriting the state is no option among others.
		po.InPlace = slices.DeleteFunc(po.InPlace, func(pr [2]int) bool { return pr[1] == index[v.ID] })
		po.InPlace = append(po.InPlace, [2]int{index[old.ID], index[v.ID]})
		p.InPlace[op] = append(p.InPlace[op], pair)
		joined.join(p.Problem.Values, index[old.ID], index[v.ID])
		// The new value is where it stays: no reader may take its memory over.
		for _, u := range readers[v.ID] {
			uo := &p.Problem.Ops[opIndex[u.ID]]
			uo.InPlace = slices.DeleteFunc(uo.InPlace, func(pr [2]int) bool { return u != op && base(p.Values[pr[0]]) == v })
		}
	}
	for i := range p.Problem.Values {
		p.Problem.Values[i].Storage = joined.of(p.Problem.Values[i].Storage)
	}
	p.setOrder(users, opIndex)
}

// storages are storages that became one: each leads to another, in the end to the one that stays.
type storages map[int]int

func (s storages) of(n int) int {
	for s[n] != 0 {
		n = s[n]
	}
	return n
}

// join puts a new value that has views into the storage of the old value that it overwrites.
func (s storages) join(vs []planner.Value, old, v int) {
	from, to := s.of(vs[v].Storage), s.of(vs[old].Storage)
	switch {
	case from == to || from == 0:
	case to == 0:
		vs[old].Storage = from
	default:
		s[from] = to
	}
}

// setOrder gives the default order: the program's, with updates in place behind the readers of what
// they overwrite.
func (p *Problem) setOrder(users [][]*ir.Op, opIndex []int) {
	waits := make([]int, len(p.Ops))
	for _, op := range p.Ops {
		for _, u := range users[op.ID] {
			waits[opIndex[u.ID]]++
		}
	}
	ready := &firstOf{}
	for i, n := range waits {
		if n == 0 {
			heap.Push(ready, i)
		}
	}
	var order []int
	moved := false
	for ready.Len() > 0 {
		next := heap.Pop(ready).(int)
		moved = moved || next != len(order)
		order = append(order, next)
		for _, u := range users[p.Ops[next].ID] {
			i := opIndex[u.ID]
			if waits[i]--; waits[i] == 0 {
				heap.Push(ready, i)
			}
		}
	}
	if len(order) < len(p.Ops) {
		panic("BUG: updates in place wait for each other")
	}
	if moved {
		p.Problem.Order = order
	}
}

// firstOf is a heap of op indices.
type firstOf []int

func (h firstOf) Len() int           { return len(h) }
func (h firstOf) Less(i, j int) bool { return h[i] < h[j] }
func (h firstOf) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *firstOf) Push(x any)        { *h = append(*h, x.(int)) }
func (h *firstOf) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}

// readsBeside: op reads the operand of pair through a view as well, at places of its own.
func readsBeside(op *ir.Op, low *lower.Lowered, pair [2]int) bool {
	for j, v := range op.Operands {
		if j != pair[0] && base(v) == base(op.Operands[pair[0]]) && !slices.Contains(low.InPlace, [2]int{j, pair[1]}) {
			return true
		}
	}
	return false
}

// base is the value whose memory v is.
func base(v *ir.Value) *ir.Value {
	for v.Op != nil && lower.IsView(v.Op) {
		v = v.Op.Operands[v.Index]
	}
	return v
}

func opName(op *ir.Op) string { return op.Loc.String() + ":" + Kind(op) }

// Kind is the op's name; a unit's is that of what it does last and what it is built around.
func Kind(op *ir.Op) string {
	if op.Name() == "fused" {
		return fusedName(op)
	}
	return op.Name()
}

func fusedName(op *ir.Op) string {
	last, core := "", ""
	for _, o := range op.Regions[0].Ops {
		switch n := o.Name(); n {
		case "broadcast", "constant", "reshape", "iota", "convert":
		case "contract", "reduce", "conv":
			core = n
			last = n
		default:
			last = n
		}
	}
	if core != "" && core != last {
		return core + "+" + last
	}
	if ops := op.Regions[0].Ops; last == "" && len(ops) > 0 {
		return ops[len(ops)-1].Name() // nothing but constants and shapes
	}
	return last
}

// Name is the name of an op as plans and reports show it.
func Name(op *ir.Op) string { return opName(op) }

func detOf(d ir.Det) planner.Det {
	pd, err := planner.ParseDet(d.String())
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return pd
}

func effectOf(e ir.Effect) planner.Effect {
	pe, err := planner.ParseEffect(e.String())
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return pe
}

// Apply materialises a plan: f's body becomes the plan's order, with a clone for every
// instance beyond the first. It returns the lowering of every op of the new body, which clones share
// with their originals, and the state updates in place.
func (p *Problem) Apply(plan *planner.Plan) *Applied {
	f := p.Func
	a := &Applied{Func: f, Lowered: map[*ir.Op]*lower.Lowered{}, InPlace: p.InPlace}
	old := f.Body.Ops
	f.Body.Ops = nil
	for _, op := range old {
		if lower.IsConstant(op) {
			f.Body.Append(op)
		}
	}
	latest := ir.Mapping{}
	a.Runs = map[*ir.Op]Run{}
	seen := make([]int, len(p.Ops))
	for _, i := range plan.Order {
		op := p.Ops[i]
		seen[i]++
		if seen[i] == 1 {
			a.Runs[op] = Run{Op: p.Number[i], ID: op.ID, Values: idsOf(op.Results)}
			op.Operands = latest.All(p.original[i])
			f.Body.Append(op)
			for _, r := range op.Results {
				latest[r] = r
			}
			a.Lowered[op] = p.Lowered[i]
			continue
		}
		c := f.NewOp(op.Def, latest.All(p.original[i]), typesOf(op), op.Attrs, cloneRegions(f, op), op.Loc.With("remat"))
		c.Remat = op
		f.Body.Append(c)
		for j, r := range op.Results {
			latest[r] = c.Results[j]
		}
		a.Runs[c] = Run{Op: p.Number[i], Clone: seen[i] - 1, ID: a.Runs[op].ID, Values: a.Runs[op].Values}
		a.Lowered[c] = p.Lowered[i]
		if p.Lowered[i] != nil {
			a.Recomputed++
		}
	}
	f.Body.Results = latest.All(f.Body.Results)
	f.Module.Attrs = f.Module.Attrs.Set("stage", "planned")
	if layers := p.AllowedLayers(); len(layers) > 0 {
		f.Module.Attrs = f.Module.Attrs.Set(ir.RecomputeAllowed, layers)
	}
	f.Renumber()
	return a
}

func typesOf(op *ir.Op) []ir.Type {
	types := make([]ir.Type, len(op.Results))
	for i, r := range op.Results {
		types[i] = r.Type
	}
	return types
}

func cloneRegions(f *ir.Func, op *ir.Op) []*ir.Block {
	var rs []*ir.Block
	for _, r := range op.Regions {
		rs = append(rs, f.CloneRegion(r))
	}
	return rs
}

// Run is who an op of a planned function is.
type Run struct {
	Op    int // its number among the problem's ops
	Clone int // which clone of that it is; 0: the original
	// ID and Values are the ids that the op and its results had in the function before planning: the same
	// whatever the plan.
	ID     int
	Values []int
}

func idsOf(vs []*ir.Value) []int {
	ids := make([]int, len(vs))
	for i, v := range vs {
		ids[i] = v.ID
	}
	return ids
}

// Applied is a planned function.
type Applied struct {
	Runs       map[*ir.Op]Run // of every op but dense constants
	Func       *ir.Func
	Lowered    map[*ir.Op]*lower.Lowered
	InPlace    map[*ir.Op][][2]int
	Recomputed int // op instances beyond the first, views aside
}

package compile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/planner"
	"reprise/runtime/exe"
)

// Mutable is a planned program of which broken copies can be made.
type Mutable struct {
	Model   *frontend.Model
	pl      *planning
	variant *variant
	plan    *planner.Plan
}

// NewMutable plans m at a share of the way from the least budget to keeping everything, with all that readers can
// compute for themselves, or nothing.
func NewMutable(m *frontend.Model, share float64, fused bool) (*Mutable, error) {
	opt := Options{PlanSteps: 300}
	grouped, err := Prepare(m.Module, opt)
	if err != nil {
		return nil, err
	}
	pl := newPlanning(context.Background(), grouped, opt)
	if pl.init, err = initBytes(grouped); err != nil {
		return nil, err
	}
	all, err := pl.saveAll()
	if err != nil {
		return nil, err
	}
	v := pl.whole
	if fused {
		vs, err := pl.chain()
		if err != nil {
			return nil, err
		}
		if v = vs[len(vs)-1]; v == pl.whole {
			return nil, errors.New("no reader can compute what it reads")
		}
	}
	least, err := pl.smallestOf(v)
	if err != nil {
		return nil, err
	}
	found, _, err := pl.withinOf(v, least.arena+int64(share*float64(all.arena-least.arena)), nil)
	if err != nil {
		return nil, err
	}
	if found == nil {
		found = least
	}
	plan := *found.plan
	plan.BaseCost, plan.Overhead, plan.Gap = 0, 0, 0 // those of the program with nothing fused
	return &Mutable{m, pl, v, &plan}, nil
}

// Mutant is a planned program that was changed, or not.
type Mutant struct {
	What  string
	Layer string // of the op that was changed, where it has to be named
	Found error  // what the proofs say; nil: they found nothing
	p     *planned
}

// Launches is the program to run.
func (m *Mutant) Launches(model *frontend.Model) (*exe.Model, map[string]lower.Launch, error) {
	t, err := cpu.ParseTarget("cpu:x86-64-v3")
	if err != nil {
		return nil, nil, err
	}
	k := keptLaunches{}
	x, err := (&Program{planned: m.p}).programs(model, t, k)
	return x, k, err
}

// Sound is the program as it is.
func (h *Mutable) Sound() (*Mutant, error) {
	p, err := h.pl.realise(h.variant, h.plan, 0)
	if err != nil {
		return nil, err
	}
	return &Mutant{What: "nothing", Found: (&Program{planned: p}).ProveOnce(), p: p}, nil
}

// mutator changes a planned program; it says what it did, "" where there was nothing to change. Unless it
// changes the layout itself, the program is laid out again.
type mutator struct {
	name   string
	layout bool
	do     func(p *planned, r *rand.Rand) (what string, op *ir.Op)
}

// Mutators names the kinds.
func Mutators() []string {
	var out []string
	for _, m := range mutators() {
		out = append(out, m.name)
	}
	return out
}

func mutators() []mutator {
	return []mutator{
		{"clone a pinned op", false, clonePinned},
		{"clone any op, and drop the original's use", false, cloneAny},
		{"swap operands of a clone", false, swapOperands},
		{"drop a state write", false, dropStateWrite},
		{"swap the new values of two states", false, swapStates},
		{"move a clone before its inputs", false, moveBeforeInputs},
		{"move an update before a reader", false, updateBeforeReader},
		{"move an op", false, moveAny},
		{"reuse a live buffer", true, reuseLive},
		{"move a workspace", true, moveWorkspace},
		{"change an op id", false, changeID},
		{"change an attribute of a clone", false, changeAttr},
		{"redirect a use", false, redirect},
		{"redirect a use inside a kernel", false, redirectInside},
		{"drop an op", false, dropOp},
		{"forget a recomputation", false, forget},
	}
}

// Mutate makes a mutant of the kind, by index; ok is false where the program gives no occasion.
func (h *Mutable) Mutate(kind int, r *rand.Rand) (mu *Mutant, ok bool, err error) {
	m := mutators()[kind]
	p, err := h.realise(m.layout)
	if err != nil {
		return nil, false, err
	}
	what, op := m.do(p, r)
	if what == "" {
		return nil, false, nil
	}
	mu = &Mutant{What: m.name + ": " + what, p: p}
	if op != nil {
		mu.Layer = op.Loc.Layer
	}
	mu.Found = h.examine(p, m.layout)
	return mu, true, nil
}

// realise is what a compilation makes of the plan, laid out or not yet.
func (h *Mutable) realise(layout bool) (*planned, error) {
	if layout {
		return h.pl.realise(h.variant, h.plan, 0)
	}
	pr, err := h.pl.state(h.variant)
	if err != nil {
		return nil, err
	}
	p := &planned{module: pr.Func.Module, before: h.pl.module, variant: h.variant, problem: pr.Problem, plan: h.plan, applied: pr.Apply(h.plan)}
	p.low = lowerings(p.applied.Lowered)
	_, _, p.resident = residents(pr.Func)
	return p, nil
}

// examine is what a compilation does with a planned program.
func (h *Mutable) examine(p *planned, laidOut bool) (err error) {
	defer diag.Recovered(&err)
	p.applied.Func.Renumber()
	if err := ir.Verify(p.module); err != nil {
		return err
	}
	if !laidOut {
		p.frame, err = buffer.Layout(p.applied.Func.Body, buffer.Options{Lowered: p.low, Workspace: h.pl.costs.Workspace, Updates: p.problem.InPlace})
		if err != nil {
			return err
		}
		p.arena = max(p.resident+p.frame.Size, h.pl.init)
	}
	return (&Program{planned: p}).ProveOnce()
}

func pick[T any](r *rand.Rand, xs []T) (x T, ok bool) {
	if len(xs) == 0 {
		return x, false
	}
	return xs[r.IntN(len(xs))], true
}

// some are the ops of the body that launch something and for which ok holds.
func some(p *planned, ok func(op *ir.Op) bool) []*ir.Op {
	var out []*ir.Op
	for _, op := range p.applied.Func.Body.Ops {
		if !lower.IsConstant(op) && (ok == nil || ok(op)) {
			out = append(out, op)
		}
	}
	return out
}

func isClone(op *ir.Op) bool { return op.Remat != nil }

func at(p *planned, op *ir.Op) int { return slices.Index(p.applied.Func.Body.Ops, op) }

// changed forgets an op's kernel, which is made anew.
func (p *planned) changed(op *ir.Op) { delete(p.applied.Lowered, op) }

// uses are the operands, and the results of the function, that read v.
type use struct {
	op *ir.Op // nil: a result
	i  int
}

func uses(p *planned, v *ir.Value) []use {
	var out []use
	for _, op := range p.applied.Func.Body.Ops {
		for i, x := range op.Operands {
			if x == v {
				out = append(out, use{op, i})
			}
		}
	}
	for i, x := range p.applied.Func.Body.Results {
		if x == v {
			out = append(out, use{nil, i})
		}
	}
	return out
}

func (u use) set(p *planned, v *ir.Value) {
	if u.op == nil {
		p.applied.Func.Body.Results[u.i] = v
		return
	}
	u.op.Operands = slices.Clone(u.op.Operands)
	u.op.Operands[u.i] = v
}

// copyOf puts a clone of op at a position.
func copyOf(p *planned, op *ir.Op, pos int) *ir.Op {
	f := p.applied.Func
	types := make([]ir.Type, len(op.Results))
	for i, v := range op.Results {
		types[i] = v.Type
	}
	var regions []*ir.Block
	for _, b := range op.Regions {
		regions = append(regions, f.CloneRegion(b))
	}
	c := f.NewOp(op.Def, slices.Clone(op.Operands), types, op.Attrs, regions, op.Loc.With("remat"))
	c.Remat = op
	if op.Remat != nil {
		c.Remat = op.Remat
	}
	f.Body.Append(c)
	f.Body.Ops = slices.Insert(f.Body.Ops[:len(f.Body.Ops)-1], pos, c)
	run := p.applied.Runs[op]
	run.Clone += 100
	p.applied.Runs[c] = run
	return c
}

func cloneAt(p *planned, r *rand.Rand, ops []*ir.Op) (string, *ir.Op) {
	op, ok := pick(r, ops)
	if !ok {
		return "", nil
	}
	var all []use
	for _, v := range op.Results {
		all = append(all, uses(p, v)...)
	}
	u, ok := pick(r, all)
	if !ok {
		return "", nil
	}
	pos, end := at(p, op)+1, len(p.applied.Func.Body.Ops)
	if u.op != nil {
		end = at(p, u.op)
	}
	pos += r.IntN(end - pos + 1)
	c := copyOf(p, op, pos)
	old := valueOf(p, u)
	u.set(p, c.Results[old.Index])
	return remat.Name(op), nil
}

func valueOf(p *planned, u use) *ir.Value {
	if u.op == nil {
		return p.applied.Func.Body.Results[u.i]
	}
	return u.op.Operands[u.i]
}

func clonePinned(p *planned, r *rand.Rand) (string, *ir.Op) {
	return cloneAt(p, r, some(p, func(op *ir.Op) bool {
		_, pinned := p.problem.Pins[op]
		return pinned && op.Remat == nil
	}))
}

func cloneAny(p *planned, r *rand.Rand) (string, *ir.Op) {
	return cloneAt(p, r, some(p, func(op *ir.Op) bool { return !lower.IsView(op) }))
}

func swapOperands(p *planned, r *rand.Rand) (string, *ir.Op) {
	type pair struct {
		op   *ir.Op
		i, j int
	}
	var pairs []pair
	for _, op := range some(p, isClone) {
		for i, x := range op.Operands {
			for j, y := range op.Operands[:i] {
				if x != y && x.Type.Equal(y.Type) {
					pairs = append(pairs, pair{op, i, j})
				}
			}
		}
	}
	c, ok := pick(r, pairs)
	if !ok {
		return "", nil
	}
	o := slices.Clone(c.op.Operands)
	o[c.i], o[c.j] = o[c.j], o[c.i]
	c.op.Operands = o
	return fmt.Sprintf("%d and %d of %s", c.i, c.j, remat.Name(c.op)), c.op
}

func states(p *planned) []int {
	var out []int
	f := p.applied.Func
	for i, name := range f.Results {
		if s := f.Param(name); s != nil && s.IsState() {
			out = append(out, i)
		}
	}
	return out
}

func dropStateWrite(p *planned, r *rand.Rand) (string, *ir.Op) {
	f := p.applied.Func
	i, ok := pick(r, states(p))
	if !ok {
		return "", nil
	}
	name := f.Results[i]
	if r.IntN(2) == 0 {
		f.Body.Results[i] = f.Param(name) // it stays what it was
		return name, nil
	}
	f.Body.Results = slices.Delete(slices.Clone(f.Body.Results), i, i+1)
	f.Results = slices.Delete(slices.Clone(f.Results), i, i+1)
	return name + ", result and all", nil
}

func swapStates(p *planned, r *rand.Rand) (string, *ir.Op) {
	f := p.applied.Func
	i, ok := pick(r, states(p))
	if !ok {
		return "", nil
	}
	var like []int
	for _, j := range states(p) {
		if j != i && f.Body.Results[i].Type.Equal(f.Body.Results[j].Type) {
			like = append(like, j)
		}
	}
	j, ok := pick(r, like)
	if !ok {
		return "", nil
	}
	f.Body.Results = slices.Clone(f.Body.Results)
	f.Body.Results[i], f.Body.Results[j] = f.Body.Results[j], f.Body.Results[i]
	return f.Results[i] + " and " + f.Results[j], nil
}

func move(p *planned, op *ir.Op, to int) {
	b := p.applied.Func.Body
	i := at(p, op)
	b.Ops = slices.Delete(b.Ops, i, i+1)
	if to > i {
		to--
	}
	b.Ops = slices.Insert(b.Ops, to, op)
}

func moveBeforeInputs(p *planned, r *rand.Rand) (string, *ir.Op) {
	op, ok := pick(r, some(p, func(op *ir.Op) bool {
		return op.Remat != nil && slices.ContainsFunc(op.Operands, func(v *ir.Value) bool { return v.Op != nil && !lower.IsConstant(v.Op) })
	}))
	if !ok {
		return "", nil
	}
	for _, v := range op.Operands {
		if v.Op != nil && !lower.IsConstant(v.Op) {
			move(p, op, at(p, v.Op))
			break
		}
	}
	return remat.Name(op), nil
}

// updateBeforeReader moves an op that overwrites a state before an op that still reads the old value.
func updateBeforeReader(p *planned, r *rand.Rand) (string, *ir.Op) {
	type pair struct{ update, reader *ir.Op }
	var pairs []pair
	for _, op := range some(p, func(op *ir.Op) bool { return len(p.problem.InPlace[op]) > 0 }) {
		for _, pr := range p.problem.InPlace[op] {
			for _, o := range p.applied.Func.Body.Ops[:at(p, op)] {
				if slices.ContainsFunc(o.Operands, func(v *ir.Value) bool { return base(v) == op.Operands[pr[0]] }) && !lower.IsView(o) {
					pairs = append(pairs, pair{op, o})
				}
			}
		}
	}
	c, ok := pick(r, pairs)
	if !ok {
		return "", nil
	}
	move(p, c.update, at(p, c.reader))
	return fmt.Sprintf("%s before %s", remat.Name(c.update), remat.Name(c.reader)), nil
}

func moveAny(p *planned, r *rand.Rand) (string, *ir.Op) {
	op, ok := pick(r, some(p, nil))
	if !ok {
		return "", nil
	}
	to := r.IntN(len(p.applied.Func.Body.Ops))
	if to == at(p, op) || to == at(p, op)+1 {
		return "", nil
	}
	move(p, op, to)
	return fmt.Sprintf("%s to %d", remat.Name(op), to), nil
}

// homes are the values that have a place of their own in the frame, in the order of the program.
func homes(p *planned) []*ir.Value {
	var out []*ir.Value
	for _, op := range p.applied.Func.Body.Ops {
		for _, v := range op.Results {
			h, ok := p.frame.Homes[v]
			if ok && h.Param == nil && h.Const == nil && h.External == "" && v.Type.Bytes() > 0 && !lower.IsView(op) {
				out = append(out, v)
			}
		}
	}
	return out
}

func reuseLive(p *planned, r *rand.Rand) (string, *ir.Op) {
	vs := homes(p)
	v, ok := pick(r, vs)
	u, _ := pick(r, vs)
	if !ok || p.frame.Homes[u].Offset == p.frame.Homes[v].Offset {
		return "", nil
	}
	to := p.frame.Homes[u].Offset
	if to+v.Type.Bytes() > p.frame.Size {
		return "", nil
	}
	for _, op := range p.applied.Func.Body.Ops {
		for _, x := range op.Results {
			if base(x) == v {
				p.frame.Homes[x] = buffer.Home{Offset: to}
			}
		}
	}
	return fmt.Sprintf("%%%s of %s where %%%s of %s is", v.Name, remat.Name(v.Op), u.Name, remat.Name(u.Op)), nil
}

func moveWorkspace(p *planned, r *rand.Rand) (string, *ir.Op) {
	op, ok := pick(r, some(p, func(op *ir.Op) bool { return len(p.frame.Work[op]) > 0 }))
	vs := homes(p)
	u, okU := pick(r, vs)
	if !ok || !okU {
		return "", nil
	}
	k := r.IntN(len(p.frame.Work[op]))
	to := p.frame.Homes[u].Offset
	i := slices.IndexFunc(p.frame.Stretches, func(s buffer.Stretch) bool {
		return s.Value == nil && s.Op == op && s.Offset == p.frame.Work[op][k]
	})
	if i < 0 || to == p.frame.Work[op][k] || to+p.frame.Stretches[i].Bytes > p.frame.Size {
		return "", nil
	}
	p.frame.Work[op] = slices.Clone(p.frame.Work[op])
	p.frame.Work[op][k] = to
	return fmt.Sprintf("%d of %s to %%%s of %s", k, remat.Name(op), u.Name, remat.Name(u.Op)), nil
}

// inside are the ops of the body and of kernels for which ok holds, with the op at the top.
func inside(p *planned, ok func(top, op *ir.Op) bool) [][2]*ir.Op {
	var out [][2]*ir.Op
	for _, top := range some(p, nil) {
		visit := func(op *ir.Op) {
			if ok(top, op) {
				out = append(out, [2]*ir.Op{top, op})
			}
		}
		visit(top)
		for _, b := range top.Regions {
			b.Walk(visit)
		}
	}
	return out
}

func changeID(p *planned, r *rand.Rand) (string, *ir.Op) {
	c, ok := pick(r, inside(p, func(_, op *ir.Op) bool { _, random := op.Attrs.Get("rng").(int64); return random }))
	if !ok {
		return "", nil
	}
	c[1].Attrs = c[1].Attrs.Set("rng", c[1].Attrs.Int("rng")+int64(1+r.IntN(3)))
	p.changed(c[0])
	return remat.Name(c[0]), c[0]
}

func changeAttr(p *planned, r *rand.Rand) (string, *ir.Op) {
	c, ok := pick(r, inside(p, func(top, op *ir.Op) bool {
		return top.Remat != nil && slices.ContainsFunc(op.Attrs, func(a ir.Attr) bool { return changedAttr(a) != nil })
	}))
	if !ok {
		return "", nil
	}
	var as []ir.Attr
	for _, a := range c[1].Attrs {
		if changedAttr(a) != nil {
			as = append(as, a)
		}
	}
	a, _ := pick(r, as)
	c[1].Attrs = c[1].Attrs.Set(a.Name, changedAttr(a))
	p.changed(c[0])
	return fmt.Sprintf("%s of %s in %s", a.Name, c[1].Name(), remat.Name(c[0])), c[0]
}

// changedAttr is another value of an attribute, nil where there is none that could be meant.
func changedAttr(a ir.Attr) any {
	switch v := a.Val.(type) {
	case float64:
		return v/2 + 0.125
	case bool:
		return !v
	case string:
		switch v {
		case "sum":
			return "max"
		case "max":
			return "sum"
		case "lt":
			return "le"
		case "eq":
			return "ne"
		}
	case []int64:
		if len(v) > 1 {
			w := slices.Clone(v)
			slices.Reverse(w)
			if !slices.Equal(v, w) {
				return w
			}
		}
	}
	return nil
}

func redirect(p *planned, r *rand.Rand) (string, *ir.Op) {
	ops := p.applied.Func.Body.Ops
	op, ok := pick(r, some(p, func(op *ir.Op) bool { return len(op.Operands) > 0 }))
	if !ok {
		return "", nil
	}
	i := r.IntN(len(op.Operands))
	v := op.Operands[i]
	var like []*ir.Value
	add := func(x *ir.Value) {
		if x != v && x.Type.Equal(v.Type) {
			like = append(like, x)
		}
	}
	for _, x := range p.applied.Func.Body.Params {
		add(x)
	}
	for _, o := range ops[:at(p, op)] {
		for _, x := range o.Results {
			add(x)
		}
	}
	x, ok := pick(r, like)
	if !ok {
		return "", nil
	}
	use{op, i}.set(p, x)
	return fmt.Sprintf("operand %d of %s from %%%s to %%%s", i, remat.Name(op), v.Name, x.Name), op
}

func redirectInside(p *planned, r *rand.Rand) (string, *ir.Op) {
	op, ok := pick(r, some(p, func(op *ir.Op) bool { return op.Name() == "fused" && len(op.Regions[0].Ops) > 1 }))
	if !ok {
		return "", nil
	}
	b := op.Regions[0]
	k := r.IntN(len(b.Ops))
	o := b.Ops[k]
	if len(o.Operands) == 0 {
		return "", nil
	}
	i := r.IntN(len(o.Operands))
	var like []*ir.Value
	for _, x := range b.Params {
		if x != o.Operands[i] && x.Type.Equal(o.Operands[i].Type) {
			like = append(like, x)
		}
	}
	for _, q := range b.Ops[:k] {
		for _, x := range q.Results {
			if x != o.Operands[i] && x.Type.Equal(o.Operands[i].Type) {
				like = append(like, x)
			}
		}
	}
	x, ok := pick(r, like)
	if !ok {
		return "", nil
	}
	o.Operands = slices.Clone(o.Operands)
	o.Operands[i] = x
	p.changed(op)
	return fmt.Sprintf("operand %d of %s in %s", i, o.Name(), remat.Name(op)), op
}

func dropOp(p *planned, r *rand.Rand) (string, *ir.Op) {
	op, ok := pick(r, some(p, nil))
	if !ok {
		return "", nil
	}
	b := p.applied.Func.Body
	i := at(p, op)
	b.Ops = slices.Delete(b.Ops, i, i+1)
	// Its readers take an operand of it instead, where one has the type: as if it did nothing.
	for _, v := range op.Results {
		for _, u := range uses(p, v) {
			for _, x := range op.Operands {
				if x.Type.Equal(v.Type) {
					u.set(p, x)
					break
				}
			}
		}
	}
	return remat.Name(op), nil
}

// forget reads the original instead of a clone; that keeps the meaning, and takes memory.
func forget(p *planned, r *rand.Rand) (string, *ir.Op) {
	op, ok := pick(r, some(p, func(op *ir.Op) bool { return op.Remat != nil && !lower.IsView(op) }))
	if !ok {
		return "", nil
	}
	for i, v := range op.Results {
		for _, u := range uses(p, v) {
			u.set(p, op.Remat.Results[i])
		}
	}
	b := p.applied.Func.Body
	i := at(p, op)
	b.Ops = slices.Delete(b.Ops, i, i+1)
	return remat.Name(op), nil
}

package compile

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes/buffer"
	"reprise/passes/fuse"
	"reprise/passes/lower"
	"reprise/passes/policy"
	"reprise/passes/remat"
	"reprise/planner"
)

// planned is a model's step with a plan applied and every byte placed.
type planned struct {
	module  *ir.Module
	before  *ir.Module        // the program before planning
	variant *variant          // what of it is fused
	base    *stated           // of the program before planning
	ids     map[*ir.Value]int // of the problem's values, there
	problem *remat.Problem
	plan    *planner.Plan
	applied *remat.Applied
	frame   *buffer.Frame
	low     func(*ir.Op) (*lower.Lowered, error)
	rules   *policy.Report // nil without a policy

	resident int64       // bytes of states, keys, step number and inputs
	arena    int64       // resident and frame
	costs    *CostReport // nil without a table
}

// planning plans one grouped module at different budgets.
type planning struct {
	ctx    context.Context
	module *ir.Module // grouped, never changed
	costs  remat.Costs
	opt    planner.Options
	init   int64 // bytes that @init takes, whatever the plan
	allow  func(layer string) bool

	policy         *policy.Policy
	alone          bool // the policy decides without a budget
	allowUnmatched bool
	table          *CostTable
	quick          bool // layouts and the smallest program are not looked for with all means either
	checks         *stopwatch

	number   map[int]int            // of the module's ops, by id
	alike    map[string]remat.Known // ops of any variant that were stated, by structure
	whole    *variant               // nothing fused
	variants []*variant             // whole, then ever more; nil: not found yet
	obeyed   *planned               // by the policy alone; nil: not found yet
	least    *planned               // of the smallest arena; nil: not found yet
}

// stated is a planning problem with what the policy said of it.
type stated struct {
	*remat.Problem
	rules  *policy.Report
	costs  *CostReport
	index  map[int]int // of the values, by id; applying a plan changes ids
	at     map[int]int // of the ops, by id
	backed []bool      // by value: the backward part reads it
}

// newPlanning prepares planning a grouped module.
func newPlanning(ctx context.Context, module *ir.Module, o Options) *planning {
	steps := o.PlanSteps
	if steps == 0 && o.TimeLimit == 0 {
		steps = planSteps
	}
	quick := o.PlanSteps > 0 && o.PlanSteps < quickSteps
	return &planning{ctx: ctx, checks: o.checks, module: module, costs: newCosts(), policy: o.Policy, alone: o.Budget == Budget{}, allowUnmatched: o.AllowUnmatched, table: o.Costs, quick: quick,
		allow: o.AllowRecompute, number: remat.Numbers(module.Func("step")), alike: map[string]remat.Known{}, whole: &variant{},
		opt: planner.Options{TimeLimit: o.TimeLimit, Steps: steps, Threads: runtime.GOMAXPROCS(0), Gap: planGap, Quick: quick, Checked: o.checks.add}}
}

const (
	// planSteps is the work of the planner for one budget: half a second or so. A person who wants to
	// wait for more gives a time limit.
	planSteps = 300_000
	// quickSteps: who asks for fewer wants any plan soon.
	quickSteps = 1000
	// planGap ends the search: a plan within a thousandth of the bound is as good as proven best.
	planGap = 0.001
)

// state states the planning problem of a variant on a fresh copy of the module.
func (p *planning) state(v *variant) (*stated, error) {
	m := p.module.Clone()
	if len(v.sites) > 0 {
		fuse.Fold(m.Func("step"), ops.Table(), v.sites)
		if err := p.checks.time(func() error { return ir.Verify(m) }); err != nil {
			return nil, fmt.Errorf("BUG: after fusing: %w", err)
		}
	}
	pr, err := remat.Build(m.Func("step"), p.costs, remat.Options{AllowRecompute: p.allows, Number: p.number, Known: p.known(v), Alike: p.alike})
	if err != nil {
		return nil, err
	}
	costs, err := p.table.apply(pr)
	if err != nil {
		return nil, err
	}
	rules, err := p.restrict(v, pr)
	if err != nil {
		return nil, err
	}
	s := &stated{pr, rules, costs, make(map[int]int, len(pr.Values)), make(map[int]int, len(pr.Ops)), pr.Backed()}
	for i, w := range pr.Values {
		s.index[w.ID] = i
	}
	for i, op := range pr.Ops {
		s.at[op.ID] = i
	}
	return s, nil
}

// realise applies a plan of a variant to a fresh copy and lays it out: in at most budget bytes where that is
// found, which is enough, or in the fewest where budget is 0. The program's plan is a copy with its
// overhead stated against keeping everything.
func (p *planning) realise(v *variant, plan *planner.Plan, budget int64) (*planned, error) {
	pr, err := p.state(v)
	if err != nil {
		return nil, err
	}
	base, err := p.stated(p.whole)
	if err != nil {
		return nil, err
	}
	if err := p.checks.time(func() error { _, err := planner.Check(pr.Problem.Problem, plan, -1); return err }); err != nil {
		return nil, fmt.Errorf("BUG: the plan does not pass the check: %w", err)
	}
	rebased := *plan
	plan = &rebased
	if err := p.rebase(plan); err != nil {
		return nil, err
	}
	f := pr.Func
	out := &planned{module: f.Module, before: p.module, variant: v, base: base, ids: map[*ir.Value]int{}, problem: pr.Problem, plan: plan, costs: pr.costs}
	if pr.rules != nil {
		out.rules = pr.rules.Finished(base.Problem, p.outcome(v, pr.Problem, plan, base))
		if err := out.rules.Within(); err != nil {
			return nil, fmt.Errorf("BUG: %w", err)
		}
	}
	for _, v := range pr.Values {
		out.ids[v] = v.ID
	}
	out.applied = pr.Apply(plan)
	if err := p.checks.time(func() error { return ir.Verify(f.Module) }); err != nil {
		return nil, fmt.Errorf("BUG: after applying the plan: %w", err)
	}
	out.low = lowerings(out.applied.Lowered)
	_, _, out.resident = residents(f)
	out.frame, err = buffer.Layout(f.Body, buffer.Options{Lowered: out.low, Workspace: p.costs.Workspace, Updates: pr.InPlace, Checked: p.checks.add,
		Room: max(budget-out.resident, 0), Quick: p.quick})
	if err != nil {
		return nil, err
	}
	out.arena = max(out.resident+out.frame.Size, p.init)
	return out, nil
}

// lowerings looks a lowering up, and makes those of regions' ops as they come.
func lowerings(known map[*ir.Op]*lower.Lowered) func(*ir.Op) (*lower.Lowered, error) {
	return func(op *ir.Op) (*lower.Lowered, error) {
		if l := known[op]; l != nil {
			return l, nil
		}
		l, err := lower.Op(op)
		if err == nil {
			known[op] = l
		}
		return l, err
	}
}

// saveAll is the program that keeps everything.
func (p *planning) saveAll() (*planned, error) {
	if _, err := p.stated(p.whole); err != nil { // free takes the lowered ops over
		return nil, err
	}
	p = p.free()
	pr, err := p.stated(p.whole)
	if err != nil {
		return nil, err
	}
	if err := pr.Validate(); err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	return p.realise(p.whole, planner.SaveAll(pr.Problem.Problem), 0)
}

// smallestOf is the program of the smallest arena that was found of a variant.
func (p *planning) smallestOf(v *variant) (*planned, error) {
	plan, err := p.leastOf(v)
	if err != nil {
		return nil, err
	}
	return p.realise(v, plan, 0)
}

// leastOf is the plan of the fewest bytes that was found of a variant.
func (p *planning) leastOf(v *variant) (*planner.Plan, error) {
	pr, err := p.stated(v)
	if err != nil {
		return nil, err
	}
	opt := p.opt
	opt.Known = &v.least
	plan, err := planner.MinBudgetOptions(p.ctx, pr.Problem.Problem, opt)
	if err != nil {
		return nil, p.contradiction(pr, err)
	}
	return plan, nil
}

// maxReplans bounds how often the planner is asked again because the layout of its plan
// was larger than the live bytes it counts.
const maxReplans = 12

// withinOf is the cheapest program found of a variant whose arena is at most budget bytes; nil, with the
// planner's reasons, where there is none. The search begins with start, the order of a plan, if that is not nil.
func (p *planning) withinOf(v *variant, budget int64, start []int) (*planned, *planner.InfeasibleError, error) {
	pr, err := p.stated(v)
	if err != nil {
		return nil, nil, err
	}
	opt := p.opt
	opt.Budget, opt.Known, opt.Start = budget, &v.least, start
	var first *planner.Plan // its bound is about budget, those of later ones are about less
	for range maxReplans {
		plan, err := planner.Solve(p.ctx, pr.Problem.Problem, opt)
		var inf *planner.InfeasibleError
		if errors.As(err, &inf) {
			return nil, inf, nil
		}
		if err != nil {
			return nil, nil, p.contradiction(pr, err)
		}
		if first == nil {
			first = plan
		}
		plan.BudgetBytes = budget
		setBound(plan, first.LowerBound, first.Proof)
		out, err := p.realise(v, plan, budget)
		if err != nil {
			return nil, nil, err
		}
		if out.arena <= budget {
			return out, nil, nil
		}
		opt.Budget = min(opt.Budget-max(out.arena-budget, remat.Align), plan.PeakBytes-remat.Align) // another plan
	}
	return nil, nil, nil
}

// setBound puts a lower bound on the cost of all plans within a budget into one of them.
func setBound(plan *planner.Plan, bound int64, proof string) {
	plan.LowerBound, plan.Proof = bound, proof
	if plan.BaseCost > 0 {
		plan.Gap = float64(plan.Cost-bound) / float64(plan.BaseCost)
	}
}

// boundSteps is the planner's work on the bound of a plan that it did not find by cost.
const boundSteps = 50_000

// certify bounds the plan of out, which the search for the smallest arena found, at budget.
func (p *planning) certify(out *planned, budget int64) error {
	opt := p.opt
	opt.Budget, opt.Steps = budget, boundSteps
	bound, proof, err := planner.Bound(p.ctx, out.problem.Problem, opt)
	out.plan.BudgetBytes = budget
	if bound > out.plan.LowerBound {
		setBound(out.plan, bound, proof)
	}
	return err
}

// BudgetError says that a budget can't be met: what could, what binds, and what no plan can beat.
type BudgetError struct {
	Diag       *diag.Error `json:"-"`
	MinBudget  int64       `json:"min_budget_bytes"`
	LowerBound int64       `json:"lower_bound_bytes"`
	Peak       *Peak       `json:"peak,omitempty"` // of the smallest plan
	Binding    []Binding   `json:"binding"`
}

// Peak is the place in the schedule at which most is in memory.
type Peak struct {
	Position int    `json:"position"` // of the op in the schedule
	Of       int    `json:"of"`       // ops of the schedule
	Op       string `json:"op"`
	Layer    string `json:"layer,omitempty"`
	Bytes    int64  `json:"bytes"`        // everything in memory there
	Pinned   int64  `json:"pinned_bytes"` // of it pinned, or saved by a rule
}

// Binding is a value that is in memory at the peak of the smallest plan.
type Binding struct {
	Name   string `json:"name"`
	Layer  string `json:"layer"`
	Type   string `json:"type"`
	Bytes  int64  `json:"bytes"`
	Pinned string `json:"pinned,omitempty"` // why it may not be computed again, where that is so
}

func (e *BudgetError) Error() string { return e.Diag.Error() }

// Unwrap gives the message.
func (e *BudgetError) Unwrap() error { return e.Diag }

const maxBinding = 10

// unmeetable explains that budget is below least, the smallest program found, and floor what no plan can
// do with less than.
func unmeetable(budget int64, least *planned, floor int64) *BudgetError {
	x := explain(least, least.arena)
	at := &Peak{Position: x.Memory.PeakPosition, Of: len(x.Ops), Op: x.Memory.PeakOp, Layer: x.Memory.PeakLayer,
		Bytes: x.Memory.StepResidentBytes + x.Memory.PeakBytes}
	e := &BudgetError{MinBudget: least.arena, LowerBound: floor, Peak: at}
	var live []Binding
	for _, v := range x.Values {
		if v.Fate == FateResident {
			live = append(live, Binding{Name: v.Op + " " + v.Name, Layer: v.Layer, Type: v.Type, Bytes: v.Bytes})
		}
	}
	var pinned []string
	for _, s := range x.Stretches {
		if s.Start > at.Position || at.Position > s.End {
			continue
		}
		b := Binding{Name: "workspace of " + x.Ops[s.Start].Op, Layer: x.Ops[s.Start].Layer, Type: "bytes", Bytes: s.Bytes}
		if s.Value >= 0 {
			v := x.Values[s.Value]
			b.Name, b.Type = v.Name, v.Type
			if v.Fate == FatePinned || strings.HasPrefix(v.Rule, "must be saved") {
				b.Pinned = v.Reason
				at.Pinned += s.Bytes
				pinned = append(pinned, fmt.Sprintf("%s (%s: %s)", v.Name, Bytes(s.Bytes), v.Reason))
			}
		}
		live = append(live, b)
	}
	sortBinding(live)
	e.Binding = live[:min(len(live), maxBinding)]
	var msg strings.Builder
	fmt.Fprintf(&msg, "no plan fits in %s (%d bytes): the smallest budget found is %s (%d bytes), and no plan can do with less than %s (%d bytes); ",
		Bytes(budget), budget, Bytes(e.MinBudget), e.MinBudget, Bytes(e.LowerBound), e.LowerBound)
	fmt.Fprintf(&msg, "most is in memory, %s, at op %d of %d, %s; the largest of %d values there:", Bytes(at.Bytes), at.Position, at.Of, at.Op, len(live))
	for _, b := range e.Binding {
		fmt.Fprintf(&msg, "\n  %9s  %s (layer %s, %s)", Bytes(b.Bytes), b.Name, b.Layer, b.Type)
	}
	if len(pinned) > 0 {
		fmt.Fprintf(&msg, "\n  %s of it may not be computed again: %s", Bytes(at.Pinned), strings.Join(pinned[:min(len(pinned), maxBinding)], "; "))
	} else {
		msg.WriteString("\n  no pinned value and no rule that says must is part of it")
	}
	if why := least.rules.Says(); why != "" {
		msg.WriteString("\n  the policy has a say in it: " + why)
	}
	e.Diag = diag.Errorf("budget", "%s", msg.String()).WithHint("give at least --budget %dB, or make the batch smaller", e.MinBudget)
	e.Diag.Layer = e.Binding[0].Layer
	return e
}

// lowerBound is what no plan can do without: residents and the largest working set of one op.
func lowerBound(p *planner.Problem) int64 {
	var resident, most int64
	for _, v := range p.Values {
		if v.Resident {
			resident += v.Bytes
		}
	}
	for i := range p.Ops {
		op := &p.Ops[i]
		n := op.Workspace
		seen := map[int]bool{}
		reuse := map[int]bool{}
		for _, pr := range op.InPlace {
			reuse[pr[1]] = true
		}
		for _, list := range [][]int{op.Inputs, op.Outputs} {
			for _, v := range list {
				pv := &p.Values[v]
				if !seen[v] && !pv.Resident && pv.Storage == 0 && !reuse[v] {
					n += pv.Bytes
				}
				seen[v] = true
			}
		}
		most = max(most, n)
	}
	return resident + most
}

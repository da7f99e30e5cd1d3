package compile

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"reprise/codegen/cpu"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/planner"
)

// planned is a model's step with a plan applied and every byte placed.
type planned struct {
	module  *ir.Module
	before  *ir.Module // the program before planning
	problem *remat.Problem
	plan    *planner.Plan
	applied *remat.Applied
	frame   *buffer.Frame
	low     func(*ir.Op) (*lower.Lowered, error)

	resident int64 // bytes of states, keys, step number and inputs
	arena    int64 // resident and frame
}

// planning plans one grouped module at different budgets.
type planning struct {
	ctx    context.Context
	module *ir.Module // grouped, never changed
	costs  remat.Costs
	opt    planner.Options
	init   int64 // bytes that @init takes, whatever the plan
	allow  func(layer string) bool
}

// newPlanning prepares planning a grouped module.
func newPlanning(ctx context.Context, module *ir.Module, t cpu.Target, o Options) *planning {
	steps := o.PlanSteps
	if steps == 0 && o.TimeLimit == 0 {
		steps = planSteps
	}
	return &planning{ctx: ctx, module: module, costs: newCosts(t), allow: o.AllowRecompute,
		opt: planner.Options{TimeLimit: o.TimeLimit, Steps: steps, Threads: runtime.GOMAXPROCS(0), Gap: planGap}}
}

const (
	// planSteps is the work of the planner for one budget: half a second or so. A person who wants to
	// wait for more gives a time limit.
	planSteps = 300_000
	// planGap ends the search: a plan within a thousandth of the bound is as good as proven best.
	planGap = 0.001
)

// problem states the planning problem on a fresh copy of the module.
func (p *planning) problem() (*remat.Problem, error) {
	m := p.module.Clone()
	return remat.Build(m.Func("step"), p.costs, remat.Options{AllowRecompute: p.allow})
}

// realise applies a plan to a fresh copy and lays it out.
func (p *planning) realise(plan *planner.Plan) (*planned, error) {
	pr, err := p.problem()
	if err != nil {
		return nil, err
	}
	if _, err := planner.Check(pr.Problem, plan, -1); err != nil {
		return nil, fmt.Errorf("BUG: the plan does not pass the check: %w", err)
	}
	f := pr.Func
	out := &planned{module: f.Module, before: p.module, problem: pr, plan: plan}
	out.applied = pr.Apply(plan)
	if err := ir.Verify(f.Module); err != nil {
		return nil, fmt.Errorf("BUG: after applying the plan: %w", err)
	}
	out.low = lowerings(out.applied.Lowered)
	out.frame, err = buffer.Layout(f.Body, buffer.Options{Lowered: out.low, Workspace: p.costs.Workspace, Updates: pr.InPlace})
	if err != nil {
		return nil, err
	}
	_, _, out.resident = residents(f)
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
	pr, err := p.problem()
	if err != nil {
		return nil, err
	}
	if err := pr.Validate(); err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	return p.realise(planner.SaveAll(pr.Problem))
}

// smallest is the program of the smallest arena that was found.
func (p *planning) smallest() (*planned, error) {
	pr, err := p.problem()
	if err != nil {
		return nil, err
	}
	plan, err := planner.MinBudgetOptions(p.ctx, pr.Problem, p.opt)
	if err != nil {
		return nil, err
	}
	return p.realise(plan)
}

// maxReplans bounds how often the planner is asked again because the layout of its plan
// was larger than the live bytes it counts.
const maxReplans = 12

// within is the cheapest program found whose arena is at most budget bytes; nil, with the
// planner's reasons, where there is none.
func (p *planning) within(budget int64) (*planned, *planner.InfeasibleError, error) {
	pr, err := p.problem()
	if err != nil {
		return nil, nil, err
	}
	opt := p.opt
	opt.Budget = budget
	for range maxReplans {
		plan, err := planner.Solve(p.ctx, pr.Problem, opt)
		var inf *planner.InfeasibleError
		if errors.As(err, &inf) {
			return nil, inf, nil
		}
		if err != nil {
			return nil, nil, err
		}
		out, err := p.realise(plan)
		if err != nil {
			return nil, nil, err
		}
		if out.arena <= budget {
			return out, nil, nil
		}
		opt.Budget -= max(out.arena-budget, remat.Align)
	}
	return nil, nil, nil
}

// BudgetError says that a budget can't be met: what could, what binds, and what no plan can beat.
type BudgetError struct {
	Diag       *diag.Error `json:"-"`
	MinBudget  int64       `json:"min_budget_bytes"`
	LowerBound int64       `json:"lower_bound_bytes"`
	Binding    []Binding   `json:"binding"`
}

// Binding is a value that is in memory at the peak of the smallest plan.
type Binding struct {
	Name  string `json:"name"`
	Layer string `json:"layer"`
	Type  string `json:"type"`
	Bytes int64  `json:"bytes"`
}

func (e *BudgetError) Error() string { return e.Diag.Error() }

// Unwrap gives the message.
func (e *BudgetError) Unwrap() error { return e.Diag }

const maxBinding = 10

// unmeetable explains that budget is below min, the smallest program found.
func unmeetable(budget int64, min *planned) error {
	e := &BudgetError{MinBudget: min.arena, LowerBound: lowerBound(min.problem)}
	for _, b := range binding(min) {
		e.Binding = append(e.Binding, b)
	}
	msg := fmt.Sprintf("no plan fits in %s: the smallest budget found is %s, and no plan can do with less than %s; in memory at the peak are",
		Bytes(budget), Bytes(e.MinBudget), Bytes(e.LowerBound))
	for i, b := range e.Binding {
		if i == 3 {
			break
		}
		if i > 0 {
			msg += ","
		}
		msg += fmt.Sprintf(" %s of layer %s (%s, %s)", b.Name, b.Layer, b.Type, Bytes(b.Bytes))
	}
	layer := ""
	if len(e.Binding) > 0 {
		layer = e.Binding[0].Layer
	}
	e.Diag = diag.Errorf("budget", "%s", msg).WithHint("give at least --budget %dB, or make the batch smaller", e.MinBudget)
	e.Diag.Layer = layer
	return e
}

// lowerBound is what no plan can do without: residents and the largest working set of one op.
func lowerBound(p *remat.Problem) int64 {
	var resident, most int64
	for _, v := range p.Problem.Values {
		if v.Resident {
			resident += v.Bytes
		}
	}
	for i := range p.Problem.Ops {
		op := &p.Problem.Ops[i]
		n := op.Workspace
		seen := map[int]bool{}
		reuse := map[int]bool{}
		for _, pr := range op.InPlace {
			reuse[pr[1]] = true
		}
		for _, list := range [][]int{op.Inputs, op.Outputs} {
			for _, v := range list {
				pv := &p.Problem.Values[v]
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

// binding lists what is in memory at the peak, largest first.
func binding(p *planned) []Binding {
	var out []Binding
	for _, v := range p.problem.Func.Body.Params {
		out = append(out, Binding{v.Role() + " " + v.Name, layerOf(v), v.Type.String(), v.Type.Bytes()})
	}
	for _, s := range p.liveAtPeak() {
		b := Binding{Name: "workspace of " + remat.Kind(s.Op), Layer: s.Op.Loc.Layer, Type: "bytes", Bytes: s.Bytes}
		if s.Value != nil {
			b.Name, b.Type = remat.Kind(s.Op)+" %"+s.Value.Name, s.Value.Type.String()
		}
		out = append(out, b)
	}
	sortBinding(out)
	if len(out) > maxBinding {
		out = out[:maxBinding]
	}
	return out
}

func (p *planned) liveAtPeak() []buffer.Stretch {
	_, pos := p.profile()
	var out []buffer.Stretch
	for _, s := range p.frame.Stretches {
		if s.Start <= pos && pos <= s.End {
			out = append(out, s)
		}
	}
	return out
}

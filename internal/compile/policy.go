package compile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/fuse"
	"reprise/passes/policy"
	"reprise/passes/remat"
	"reprise/planner"
)

// restrict applies the policy to the planning problem of a variant. A program without a backward part is left as it
// is, so that an inference program has no trace of any policy.
//
// Lines are about the values of the program with nothing fused, and what they decide there is what
// holds in every variant: a value has the same id in all, and so has a gate. Row statistics that only fusing
// brings to memory are made for one of those values and share its fate.
func (p *planning) restrict(v *variant, pr *remat.Problem) (*policy.Report, error) {
	if p.policy == nil {
		return nil, nil
	}
	if v == p.whole && v.stated == nil {
		return p.policy.Apply(pr, policy.Options{Alone: p.alone, AllowUnmatched: p.allowUnmatched})
	}
	whole, err := p.stated(p.whole)
	if err != nil {
		return nil, err
	}
	says, gates := map[int]planner.Policy{}, map[int]bool{}
	for i, w := range whole.Values {
		says[w.ID] = whole.Problem.Problem.Values[i].Policy
	}
	for _, g := range whole.Problem.Problem.Gates {
		gates[whole.Ops[g].ID] = true
	}
	served := v.served()
	pr.Problem.Gates = nil
	for i, op := range pr.Ops {
		if gates[op.ID] {
			pr.Problem.Gates = append(pr.Problem.Gates, i)
		}
		once := slices.ContainsFunc(op.Results, func(r *ir.Value) bool { return says[r.ID] == planner.MustSave })
		for j, r := range op.Results {
			fate, known := says[r.ID]
			for _, w := range served[op.ID] {
				if !known && !once && says[w] > fate { // must recompute is above prefer
					fate = says[w]
				}
			}
			pr.Problem.Values[pr.Problem.Ops[i].Outputs[j]].Policy = fate
		}
	}
	pr.Problem.Limits = v.limits(whole, pr, served)
	if len(pr.Problem.Gates) != len(gates) {
		return nil, fmt.Errorf("BUG: a gate of %s was fused away", pr.Func.Module.Name)
	}
	for _, w := range pr.Values {
		delete(says, w.ID)
	}
	for _, s := range v.sites {
		if says[s.Value].Saves() {
			return nil, fmt.Errorf("BUG: value %d of %s, which the policy saves, was fused away", s.Value, pr.Func.Module.Name)
		}
	}
	return whole.rules, nil
}

// limits are those of the program with nothing fused, in terms of a variant's values: where a value is not in memory, row
// statistics with which its readers compute it stand for it.
func (v *variant) limits(whole *stated, pr *remat.Problem, served map[int][]int) []planner.Limit {
	there := map[int]bool{}
	for _, w := range pr.Values {
		there[w.ID] = true
	}
	var out []planner.Limit
	for _, l := range whole.Problem.Problem.Limits {
		in := map[int]bool{}
		for _, i := range l.Values {
			in[whole.Values[i].ID] = true
		}
		l.Values = nil
		for i, w := range pr.Values {
			id := w.ID
			if _, ok := whole.index[id]; !ok && w.Op != nil {
				k := slices.IndexFunc(served[w.Op.ID], func(id int) bool { return !there[id] })
				if k < 0 {
					continue
				}
				id = served[w.Op.ID][k]
			}
			if in[id] {
				l.Values = append(l.Values, i)
			}
		}
		out = append(out, l)
	}
	return out
}

// served are the values that readers compute for themselves, by the id of the op that makes them.
func (v *variant) served() map[int][]int {
	out := map[int][]int{}
	for _, s := range v.sites {
		if !slices.Contains(out[s.Producer], s.Value) {
			out[s.Producer] = append(out[s.Producer], s.Value)
		}
	}
	return out
}

// fusible tells whether the policy lets readers compute a value: not where a line says that it is saved, and without a
// budget, where everything is kept that no line is about, only where it is to be recomputed or is not for the
// backward part. The op with which that part begins stays.
func (p *planning) fusible(pr *stated, s fuse.Site) bool {
	at := pr.at[s.Producer]
	if slices.Contains(pr.Problem.Problem.Gates, at) {
		return false
	}
	fate := pr.Problem.Problem.Values[pr.index[s.Value]].Policy
	if v := pr.index[s.Value]; fate == planner.PolicyNone && p.alone && !pr.rules.Bounded(v) { // which is also what a line that prefers to save comes to
		return !pr.Forward[at] || !pr.backed[v] && pr.rules.Reason(v) == ""
	}
	return !fate.Saves()
}

// outcome is what a plan of a variant, stated as pr, makes of the values of the program with nothing fused.
func (p *planning) outcome(v *variant, pr *remat.Problem, plan *planner.Plan, whole *stated) policy.Outcome {
	own := policy.OutcomeOf(pr, plan)
	out := policy.Outcome{Kept: make([]int64, len(whole.Values)), Again: own.Again}
	there := map[int]bool{}
	for i, w := range pr.Values {
		if at, ok := whole.index[w.ID]; ok {
			out.Kept[at], there[w.ID] = own.Kept[i], true
		}
	}
	served := v.served()
	for i, w := range pr.Values {
		if _, ok := whole.index[w.ID]; ok {
			continue
		}
		for _, id := range served[w.Op.ID] {
			if !there[id] {
				out.Kept[whole.index[id]] += own.Kept[i]
				break // counted once
			}
		}
	}
	for _, s := range v.sites {
		out.Again = out.Again || whole.Forward[whole.at[s.Producer]] && whole.backed[whole.index[s.Value]]
	}
	return out
}

// contradiction is the planner's refusal of what the policy made of a problem, in the policy's terms.
func (p *planning) contradiction(pr *stated, err error) error {
	var pe *planner.ProblemError
	if pr.rules == nil || !errors.As(err, &pe) {
		return err
	}
	e := diag.Errorf("policy", "no plan obeys the policy: %s", pe.Msg).
		WithHint("lines with a say in it: %s", pr.rules.Says())
	if pe.Value >= 0 {
		if op := pr.Values[pe.Value].Op; op != nil {
			e.Layer, e.Op = op.Loc.Layer, remat.Kind(op)
		}
	}
	return e
}

// allows reports whether a layer is opted out of pinning.
func (p *planning) allows(layer string) bool {
	return p.allow != nil && p.allow(layer) || p.policy.MayRecompute(layer)
}

// free is the planning without the policy, which says nothing of how ops are lowered and what they cost.
func (p *planning) free() *planning {
	if p.policy == nil {
		return p
	}
	q := *p
	q.policy, q.whole, q.variants, q.obeyed, q.least = nil, &variant{ops: p.known(p.whole)}, nil, nil, nil
	return &q
}

// restricts reports whether a policy has a say in the program, and what the policy says of it.
func (p *planning) restricts() (bool, *policy.Report, error) {
	if p.policy == nil {
		return false, nil, nil
	}
	pr, err := p.stated(p.whole)
	if err != nil {
		return false, nil, err
	}
	return len(pr.Problem.Problem.Gates) > 0, pr.rules, nil
}

// obeying is the program that the policy means by itself, without a budget: of those that take neither more
// bytes nor more time than the one with nothing fused, the one with the fewest bytes that was found. Kinds of values are
// fused one after the other, first those that make it better in both.
func (p *planning) obeying() (*planned, error) {
	if p.obeyed != nil {
		return p.obeyed, nil
	}
	best, err := p.obeyPlan(p.whole)
	if err != nil {
		return nil, err
	}
	kinds, err := p.kinds()
	if err != nil {
		return nil, err
	}
	v, plain := p.whole, best
	for _, trade := range []bool{false, true} {
		var left []kind
		for _, k := range kinds {
			w := &variant{sites: slices.Concat(v.sites, k.sites)}
			plan, err := p.obeyPlan(w)
			switch {
			case err != nil:
				return nil, err
			case plan.PeakBytes <= best.PeakBytes && plan.Cost <= best.Cost, trade && plan.PeakBytes < best.PeakBytes && plan.Cost <= plain.Cost:
				v, best = w, plan
			default:
				left = append(left, k)
			}
		}
		kinds = left
	}
	if p.obeyed, err = p.realise(v, best, 0); err != nil || v == p.whole {
		return p.obeyed, err
	}
	// A layout may have holes that the plan has not.
	if out, err := p.realise(p.whole, plain, 0); err != nil || out.arena < p.obeyed.arena {
		p.obeyed = out
		return out, err
	}
	return p.obeyed, nil
}

// obeyPlan is what the policy means by itself of a variant.
func (p *planning) obeyPlan(v *variant) (*planner.Plan, error) {
	pr, err := p.stated(v)
	if err != nil {
		return nil, err
	}
	plan, err := planner.Obey(pr.Problem.Problem)
	if err != nil {
		return nil, p.contradiction(pr, err)
	}
	return plan, nil
}

// compared adds what could be met without the policy.
func (e *BudgetError) compared(pl *planning, restricted bool) error {
	if !restricted {
		return e
	}
	if free, err := pl.free().smallest(); err == nil && free.arena < e.MinBudget {
		e.Diag.Hint += fmt.Sprintf("; without the policy the smallest budget found is %s", Bytes(free.arena))
	}
	return e
}

// Comparison is what a model costs under a policy and under our own plans.
type Comparison struct {
	Model            string         `json:"model"`
	Policy           string         `json:"policy"`
	SaveAllPeakBytes int64          `json:"save_all_peak_bytes"`
	UnderPolicy      Point          `json:"under_policy"`
	SameBytes        Point          `json:"same_bytes"`              // ours, in the bytes that the policy takes
	SameOverhead     *Point         `json:"same_overhead,omitempty"` // ours in the fewest bytes found that take no more time; nil: none smaller
	Rules            *policy.Report `json:"rules"`
}

// ComparePolicy plans a training step by the policy alone, and without it in as many bytes. With a budget
// the policy is planned within it.
func ComparePolicy(ctx context.Context, m *frontend.Model, opt Options) (*Comparison, error) {
	if opt.Policy == nil {
		return nil, diag.Errorf("usage", "there is no policy to compare with").WithHint("--policy dots_saveable --compare; named policies: reprise policies")
	}
	if _, err := cpu.ParseTarget(opt.Target); err != nil {
		return nil, err
	}
	grouped, err := Prepare(m.Module, opt)
	if err != nil {
		return nil, err
	}
	pl := newPlanning(ctx, grouped, opt)
	if pl.init, err = initBytes(grouped); err != nil {
		return nil, err
	}
	restricted, _, err := pl.restricts()
	if err != nil {
		return nil, err
	}
	if !restricted {
		return nil, diag.Errorf("policy", "%s has no backward part for which a policy could keep anything", m.Name).WithHint("compare a training step: --train")
	}
	all, err := pl.saveAll()
	if err != nil {
		return nil, err
	}
	under, err := pl.obeying()
	if err != nil {
		return nil, err
	}
	ours := pl.free()
	same, _, err := ours.within(under.arena, nil)
	if err != nil {
		return nil, err
	}
	if same == nil || same.plan.Cost > under.plan.Cost {
		same = under // the policy's plan is a plan too
	}
	c := &Comparison{Model: m.Name, Policy: opt.Policy.Name(), SaveAllPeakBytes: all.arena, UnderPolicy: under.point(under.arena),
		SameBytes: same.point(under.arena), Rules: under.rules}
	// Fewer bytes for the same time: by halving, from what is known.
	least, err := ours.smallest()
	if err != nil {
		return nil, err
	}
	lo, hi := least.arena, same.arena
	for range 4 {
		mid := lo + (hi-lo)/2
		if mid <= least.arena || mid >= hi {
			break
		}
		p, _, err := ours.within(mid, least)
		if err != nil {
			return nil, err
		}
		if p == nil || p.plan.Cost > under.plan.Cost {
			lo = mid
			continue
		}
		point := p.point(mid)
		c.SameOverhead, hi = &point, min(mid, p.arena)
	}
	return c, nil
}

// point is the plan as a point of memory against time.
func (p *planned) point(budget int64) Point {
	return Point{budget, p.arena, p.plan.Cost, p.plan.Overhead, p.plan.LowerBound, p.plan.Gap, p.applied.Recomputed}
}

package compile

import (
	"context"
	"errors"
	"fmt"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/passes/policy"
	"reprise/passes/remat"
	"reprise/planner"
)

// restrict applies the policy to a planning problem. A program without a backward part is left as it
// is, so that an inference program has no trace of any policy.
func (p *planning) restrict(pr *remat.Problem) (*policy.Report, error) {
	if p.policy == nil {
		return nil, nil
	}
	return p.policy.Apply(pr, policy.Options{Alone: p.alone, AllowUnmatched: p.allowUnmatched})
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
	q.policy, q.whole, q.variants = nil, &variant{ops: p.known(p.whole)}, nil
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

// obeying is the program that the policy means by itself, without a budget.
func (p *planning) obeying() (*planned, error) {
	pr, err := p.stated(p.whole)
	if err != nil {
		return nil, err
	}
	plan, err := planner.Obey(pr.Problem.Problem)
	if err != nil {
		return nil, p.contradiction(pr, err)
	}
	return p.realise(p.whole, plan)
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
	same, _, err := ours.within(under.arena)
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
		p, _, err := ours.within(mid)
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

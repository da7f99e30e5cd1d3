package compile

import (
	"context"

	"reprise/codegen/cpu"
	"reprise/frontend"
)

// Point is a plan on the curve of memory against time.
type Point struct {
	BudgetBytes  int64   `json:"budget_bytes"`
	ArenaBytes   int64   `json:"arena_bytes"`
	CostNs       int64   `json:"cost_ns"`
	Overhead     float64 `json:"overhead"`
	LowerBoundNs int64   `json:"lower_bound_ns"`
	Gap          float64 `json:"gap"`
	Recomputed   int     `json:"recomputed"`
}

// Curve is what a model costs at budgets from the smallest found to keeping everything.
type Curve struct {
	Model            string  `json:"model"`
	SaveAllPeakBytes int64   `json:"save_all_peak_bytes"`
	MinBudgetBytes   int64   `json:"min_budget_bytes"`
	Points           []Point `json:"points"`
}

// Pareto plans a model at n budgets, evenly spaced from the smallest found to keeping everything.
// Every plan is applied and laid out: the bytes of a point are those that the program would have.
func Pareto(ctx context.Context, m *frontend.Model, opt Options, n int) (*Curve, error) {
	if _, err := cpu.ParseTarget(opt.Target); err != nil {
		return nil, err
	}
	grouped, err := Prepare(m.Module, opt)
	if err != nil {
		return nil, err
	}
	pl := newPlanning(ctx, grouped, opt)
	pl.alone = false
	all, err := pl.saveAll()
	if err != nil {
		return nil, err
	}
	restricted, _, err := pl.restricts()
	if err != nil {
		return nil, err
	}
	least, err := pl.smallest()
	if err != nil {
		return nil, err
	}
	if least.arena > all.arena && !restricted {
		least = all
	}
	c := &Curve{Model: m.Name, SaveAllPeakBytes: all.arena, MinBudgetBytes: least.arena}
	for k := range int64(n) {
		b := least.arena
		if n > 1 {
			b += (all.arena - least.arena) * k / int64(n-1)
		}
		p, _, err := pl.within(b, least)
		if err != nil {
			return nil, err
		}
		if p == nil {
			p = least
			if err := pl.certify(p, b); err != nil {
				return nil, err
			}
		}
		if p.plan.Cost > all.plan.Cost && b >= all.arena && !restricted {
			p = all
		}
		c.Points = append(c.Points, p.point(b))
	}
	return c, nil
}

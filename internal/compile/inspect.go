package compile

import (
	"reprise/passes/remat"
	"reprise/planner"
)

// Problem is what the planner was asked; it must not be changed. Its op indices are what the plan's order
// is made of.
func (p *Program) Problem() *planner.Problem { return p.planned.problem.Problem }

// Graph is the step as it was before planning, as a problem, with the tables from its indices to ops and values.
func (p *Program) Graph() *remat.Problem { return p.planned.problem }

// Plan is what the planner answered to Problem. Its overhead and gap are those of that problem, in which some values
// may be computed by their readers; the report has them against keeping everything.
func (p *Program) Plan() *planner.Plan {
	pl := *p.planned.plan
	pl.BaseCost, pl.Overhead, pl.Gap = 0, 0, 0
	for i := range p.Problem().Ops {
		pl.BaseCost += p.Problem().Ops[i].Cost
	}
	if pl.BaseCost > 0 {
		pl.Overhead = float64(pl.Cost-pl.BaseCost) / float64(pl.BaseCost)
		pl.Gap = float64(pl.Cost-pl.LowerBound) / float64(pl.BaseCost)
	}
	return &pl
}

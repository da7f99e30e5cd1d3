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

// Plan is what the planner answered; it must not be changed.
func (p *Program) Plan() *planner.Plan { return p.planned.plan }

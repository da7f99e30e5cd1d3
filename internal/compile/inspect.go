package compile

import "reprise/planner"

// Problem is what the planner was asked; it must not be changed. Its op indices are what the plan's order
// is made of.
func (p *Program) Problem() *planner.Problem { return p.planned.problem.Problem }

// Plan is what the planner answered; it must not be changed.
func (p *Program) Plan() *planner.Plan { return p.planned.plan }

package remat

import (
	"slices"

	"reprise/ir"
)

// findPhases tells forward from backward. Backward is what differentiation made, marked by the
// provenance "vjp", and what depends on it. A step with micro-batches has several stretches of each. The gate of a backward stretch
// is its op with the longest chain of dependents: what is in memory while it runs for the first time,
// other than for its own sake, was kept from forward for backward.
//
// A program without a derivative has no gates, and all of it is forward.
func (p *Problem) findPhases() {
	n := len(p.Ops)
	producer := make([]int, len(p.Values))
	for i := range producer {
		producer[i] = -1
	}
	order := p.Problem.Order
	if order == nil {
		for i := range n {
			order = append(order, i)
		}
	}
	for i := range n {
		for _, v := range p.Problem.Ops[i].Outputs {
			producer[v] = i
		}
	}
	vjp := func(op *ir.Op) bool { return slices.Contains(op.Loc.Prov, "vjp") }
	after := make([]bool, n) // made by differentiation or dependent on that
	for _, i := range order {
		after[i] = vjp(p.Ops[i])
		for _, v := range p.Problem.Ops[i].Inputs {
			after[i] = after[i] || producer[v] >= 0 && after[producer[v]]
		}
	}
	height := make([]int, n) // length of the longest chain of dependents
	leads := make([]bool, n) // to something that differentiation made
	for _, i := range slices.Backward(order) {
		leads[i] = leads[i] || vjp(p.Ops[i])
		for _, v := range p.Problem.Ops[i].Inputs {
			if j := producer[v]; j >= 0 {
				leads[j] = leads[j] || leads[i]
				height[j] = max(height[j], height[i]+1)
			}
		}
	}
	p.Forward = make([]bool, n)
	gate, most := -1, 0
	for _, i := range order {
		if !after[i] {
			p.Forward[i] = true
			if gate >= 0 && leads[i] {
				// The forward part of the next micro-batch.
				p.Problem.Gates = append(p.Problem.Gates, gate)
				gate, most = -1, 0
			}
			continue
		}
		if !vjp(p.Ops[i]) {
			continue
		}
		if gate < 0 || height[i] > most {
			gate, most = i, height[i]
		}
	}
	if gate >= 0 {
		p.Problem.Gates = append(p.Problem.Gates, gate)
	}
}

// Under gives for each value the one whose memory it is: itself, unless it is a view.
func (p *Problem) Under() []int {
	index := map[*ir.Value]int{}
	under := make([]int, len(p.Values))
	for i, v := range p.Values {
		index[v], under[i] = i, i
	}
	for i, op := range p.Ops {
		if p.Lowered[i] == nil {
			for j, r := range op.Results {
				under[index[r]] = under[index[op.Operands[j]]]
			}
		}
	}
	return under
}

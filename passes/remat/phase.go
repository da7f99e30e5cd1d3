package remat

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/passes/lower"
	"reprise/passes/pinned"
)

// findPhases tells forward from backward. Backward is what differentiation made, marked by the
// provenance "vjp", and what depends on it. A step with micro-batches has several stretches of each. The gate of a backward stretch
// is its op that rests on the longest chain of forward ops and, of those, has the longest chain of
// dependents, as a rule the gradient of the logits. What is in memory before and after it first runs
// was kept from forward for backward.
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
	depth := make([]int, n) // length of the longest chain of forward ops that it rests on
	gate := -1
	for _, i := range order {
		for _, v := range p.Problem.Ops[i].Inputs {
			if j := producer[v]; j >= 0 {
				depth[i] = max(depth[i], depth[j])
			}
		}
		if !after[i] {
			p.Forward[i] = true
			depth[i]++
			if gate >= 0 && leads[i] {
				// The forward part of the next micro-batch.
				p.Problem.Gates = append(p.Problem.Gates, gate)
				gate = -1
			}
			continue
		}
		if !vjp(p.Ops[i]) {
			continue
		}
		if gate < 0 || depth[i] > depth[gate] || depth[i] == depth[gate] && height[i] > height[gate] {
			gate = i
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

// Backed tells which values ops of the backward part read, also through views.
func (p *Problem) Backed() []bool {
	under := p.Under()
	out := make([]bool, len(p.Values))
	for i := range p.Ops {
		if !p.Forward[i] && p.Lowered[i] != nil {
			for _, v := range p.Problem.Ops[i].Inputs {
				out[under[v]] = true
			}
		}
	}
	return out
}

// pinMarked pins what the model pins: no policy and no budget opts out of that. An op in whose regions something
// is pinned is pinned whole.
func (p *Problem) pinMarked() {
	for _, op := range p.Func.Body.Ops {
		for _, r := range op.Regions {
			if op.Name() == "fused" {
				break // a pinned value is its result
			}
			r.Walk(func(o *ir.Op) {
				if _, ok := p.Pins[op]; !ok && slices.ContainsFunc(o.Results, func(v *ir.Value) bool { return v.Attrs.Bool("pin") }) {
					p.Pins[op] = pinned.Pin{Kind: pinned.Marked, Why: fmt.Sprintf("the model pins %s of layer %s in it: that is computed once and kept", o.Name(), o.Loc.Layer)}
				}
			})
		}
		for _, v := range op.Results {
			if b := base(v); v.Attrs.Bool("pin") && b.Op != nil && !lower.IsConstant(b.Op) {
				if _, ok := p.Pins[b.Op]; !ok {
					p.Pins[b.Op] = pinned.Pin{Kind: pinned.Marked, Why: "the model pins it: it is computed once and kept to its last use"}
				}
			}
		}
	}
}

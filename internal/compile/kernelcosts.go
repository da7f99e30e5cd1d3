package compile

import (
	"slices"

	"reprise/ir"
	"reprise/passes/lower"
	"reprise/runtime/exe"
)

// KernelCost is what the plan counts for one run of an op, and what runs for it: rows of a profile.
type KernelCost struct {
	Kind    string // of kernel: "contraction", "convolution" …
	Ns      int64
	Layer   string
	Symbols []string
}

// KernelCosts are those of a step, once the code is made; ops that stand in regions are part of the op around them.
func (p *Program) KernelCosts() ([]KernelCost, error) {
	costs := newCosts()
	var out []KernelCost
	for i, r := range p.Runs {
		if r.Sub != 0 {
			continue
		}
		l, err := p.planned.low(r.IR)
		if err != nil {
			return nil, err
		}
		k := KernelCost{Kind: kernelKind(r.IR, l), Ns: costs.Nanoseconds(r.IR, l), Layer: r.IR.Loc.String()}
		for _, in := range p.Exe.Step[r.First : r.Last+1] {
			if in.Kind == exe.Launch && in.Run == i+1 {
				k.Symbols = append(k.Symbols, in.Symbol)
			}
		}
		out = append(out, k)
	}
	return out, nil
}

// kernelKind names what decides an op's time.
func kernelKind(op *ir.Op, l *lower.Lowered) string {
	for _, x := range l.Launches {
		switch {
		case x.Contract != nil && (x.Contract.ProA != nil || x.Contract.ProB != nil):
			return "contraction that computes an operand"
		case x.Contract != nil:
			return "contraction"
		case x.Attention != nil && x.Attention.Backward:
			return "attention, backward"
		case x.Attention != nil:
			return "attention"
		case x.Conv != nil:
			return "convolution"
		case x.Foreign != nil:
			return "foreign"
		case x.Kern.Work().Blind:
			return op.Name()
		}
	}
	body := []*ir.Op{op}
	if op.Name() == "fused" {
		body = op.Regions[0].Ops
	}
	switch {
	case len(l.Launches) == 0:
		return "control flow"
	case slices.ContainsFunc(body, func(o *ir.Op) bool { return o.Name() == "reduce" }):
		return "rows and reductions"
	case op.Name() == "fused" || op.Family() == "elementwise" || op.Family() == "random":
		return "elementwise"
	}
	return "other loops"
}

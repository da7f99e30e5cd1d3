package compile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"reprise/codegen/ptx"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/planner"
)

// PlanJSON is the plan as the planner's file format has it, with what became of every value.
func (p *Program) PlanJSON() (string, error) {
	var buf bytes.Buffer
	if err := planner.WritePlan(&buf, p.planned.plan); err != nil {
		return "", err
	}
	var doc map[string]any
	if err := json.Unmarshal(buf.Bytes(), &doc); err != nil {
		return "", err
	}
	doc["arena_bytes"] = p.Report.ArenaBytes
	doc["explanation"], doc["report"] = p.Explanation, p.Report
	out, err := json.MarshalIndent(doc, "", " ")
	return string(out) + "\n", err
}

// Dot is the step's graph for graphviz, one box per op, clones dashed.
func (p *Program) Dot() string {
	var b strings.Builder
	b.WriteString("digraph step {\n  node [shape=box, fontname=\"sans-serif\"];\n")
	ops := p.planned.applied.Func.Body.Ops
	for _, op := range ops {
		style := ""
		if op.Remat != nil {
			style = ", style=dashed"
		}
		fmt.Fprintf(&b, "  n%d [label=%q%s];\n", op.ID, remat.Name(op), style)
		for _, v := range op.Operands {
			if v.Op != nil {
				fmt.Fprintf(&b, "  n%d -> n%d [label=%q];\n", v.Op.ID, op.ID, Bytes(v.Type.Bytes()))
			}
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// PTX is GPU text of the kernels that have one: all but the hand-scheduled families of
// contraction, convolution and attention. It needs llc-19, and Options.Keep.
func (p *Program) PTX(ctx context.Context) (string, error) {
	m := ptx.NewModule()
	for i, k := range p.Loops {
		if _, err := m.Kernel(k, fmt.Sprintf("k%d_%s", i, k.Name)); err != nil {
			return "", err
		}
	}
	return m.Compile(ctx, "sm_80")
}

// WorkOf is about the number of scalar operations that the interpreter takes for a function.
func WorkOf(f *ir.Func) int64 {
	var n int64
	f.Body.Walk(func(op *ir.Op) {
		c := ir.CostOf(op)
		n += c.Flops
		for _, r := range op.Results {
			n += r.Type.Len()
		}
	})
	return n
}

// SyntheticInput makes an input from seed and step by its feed. It serves comparisons; a
// training executable makes its own data.
func SyntheticInput(p *ir.Value, seed uint64, step int) (*tensor.Tensor, error) {
	t := tensor.New(p.Type.DType, p.Type.Shape...)
	feed, arg, _ := strings.Cut(p.Attrs.Str("feed"), ":")
	top := int64(256)
	if n, err := strconv.ParseInt(arg, 10, 64); err == nil && n > 0 {
		top = n
	}
	for i := range t.Len() {
		w := scalar.Philox4x32([4]uint32{uint32(i), uint32(i >> 32), uint32(step), nameHash(p.Name)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
		u := float64(w[0]) / (1 << 32)
		switch {
		case t.DType.IsInt():
			t.SetBits(i, uint64(int64(w[0])%min(top, 1<<31)))
		case t.DType == dtype.Bool:
			t.SetBits(i, uint64(w[0]&1))
		case feed == "zeros":
		default:
			x := u
			if feed != "uniform" {
				x = math.Sqrt(-2*math.Log(1-u)) * math.Cos(2*math.Pi*float64(w[1])/(1<<32))
			}
			switch t.DType {
			case dtype.F32:
				t.F32()[i] = float32(x)
			case dtype.F64:
				t.F64()[i] = x
			case dtype.BF16:
				t.SetBits(i, uint64(scalar.BF16(float32(x))))
			case dtype.F16:
				t.SetBits(i, uint64(scalar.F16(float32(x))))
			}
		}
	}
	return t, nil
}

func nameHash(s string) uint32 {
	h := uint32(2166136261)
	for _, c := range []byte(s) {
		h = (h ^ uint32(c)) * 16777619
	}
	return h
}

// kernText is what a launch runs, for --emit kern.
func kernText(l lower.Launch) string {
	switch {
	case l.Kern != nil:
		return "// " + l.Kern.Name + "\n" + l.Kern.Text()
	case l.Contract != nil:
		return "// " + l.Contract.Name + "\n" + l.Contract.Text()
	}
	if l.Foreign != nil {
		return fmt.Sprintf("// %s of %s\n", l.Foreign.Symbol, l.Foreign.Library)
	}
	if l.Conv != nil {
		return fmt.Sprintf("// %s\nconv %+v\n", l.Conv.Name, *l.Conv)
	}
	return fmt.Sprintf("// %s\nattention %+v\n", l.Attention.Name, *l.Attention)
}

// Reference is the module whose meaning the compiled program has, for the interpreter: raised
// and differentiated, not yet expanded or grouped.
func Reference(m *ir.Module) (*ir.Module, error) {
	mod := m.Clone()
	var until []string
	for _, p := range passes.Table() {
		until = append(until, p.Name)
		if p.Name == "autodiff" {
			break
		}
	}
	return mod, passes.Run(mod, ops.Table(), passes.Options{Only: until})
}

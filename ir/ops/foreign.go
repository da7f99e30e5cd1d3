package ops

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

func foreignOps() []*ir.OpDef { return []*ir.OpDef{foreignRow(), printRow(), assertRow()} }

// parseType is the inverse of ir.Type.String.
func parseType(s string) (ir.Type, error) {
	name, rest, ok := strings.Cut(s, "[")
	dims, closed := strings.CutSuffix(rest, "]")
	d, err := dtype.Parse(name)
	if err != nil || !ok || !closed {
		return ir.Type{}, fmt.Errorf("type %q: want the form f32[2,3]", s)
	}
	t := ir.T(d)
	if dims == "" {
		return t, nil
	}
	for _, w := range strings.Split(dims, ",") {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n < 0 {
			return ir.Type{}, fmt.Errorf("type %q: size %q is not a whole number of at least 0", s, w)
		}
		t.Shape = append(t.Shape, n)
	}
	return t, nil
}

func foreignRow() *ir.OpDef {
	dets := []ir.Det{ir.Exact, ir.Tol, ir.Decides, ir.Unknown}
	effects := []ir.Effect{ir.EffectNone, ir.EffectReads, ir.EffectWrites, ir.EffectComm, ir.EffectHost}
	words := func(n int, word func(i int) string) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = word(i)
		}
		return out
	}
	return &ir.OpDef{
		Name: "foreign", Family: "foreign",
		Doc: "Calls `symbol` of `library`: a kernel that is not ours, with the types of its results in `results`. Unless `determinism` says otherwise nothing is known of it, so it runs once, is " +
			"never recomputed, and what it gives is kept. It has no reference semantics: the interpreter refuses it by name.",
		Operands: []string{"args…"}, Results: []string{"results…"},
		Attrs: []ir.AttrDef{
			{Name: "symbol", Kind: "string", Doc: "name of the function"},
			{Name: "library", Kind: "string", Default: "", Doc: "shared library that has it; empty: the program itself"},
			{Name: "results", Kind: "strings", Doc: "types of the results, e.g. f32[2,3]"},
			{Name: "determinism", Kind: "string", Default: "unknown", Doc: "exact, tol, decides or unknown"},
			{Name: "effect", Kind: "string", Default: "none", Doc: "none, reads, writes, comm or host"},
		},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			ts := []ir.Type{}
			for _, s := range op.Attrs.Strs("results") {
				t, err := parseType(s)
				if err != nil {
					return nil, err
				}
				ts = append(ts, t)
			}
			return ts, nil
		},
		Constraints: []ir.Constraint{
			oneOf("C1", "determinism", words(len(dets), func(i int) string { return dets[i].String() })...),
			oneOf("C2", "effect", words(len(effects), func(i int) string { return effects[i].String() })...),
		},
		Effect: func(op *ir.Op) ir.Effect {
			for _, e := range effects {
				if e.String() == op.Attrs.Str("effect") {
					return e
				}
			}
			return ir.EffectHost
		},
		Det: func(op *ir.Op) ir.Det {
			for _, d := range dets {
				if d.String() == op.Attrs.Str("determinism") {
					return d
				}
			}
			return ir.Unknown
		},
		Cost:          func(op *ir.Op) ir.Cost { return ir.Cost{Bytes: ownBytes(op)} },
		NoGrad:        "a foreign kernel has no derivative",
		HandScheduled: "foreign: comes with the runtime that loads foreign kernels",
		Ref: func(_ ir.Eval, op *ir.Op, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return nil, fmt.Errorf("foreign kernel %q of library %q can't be interpreted: it has no reference semantics", op.Attrs.Str("symbol"), op.Attrs.Str("library"))
		},
	}
}

func hostOp(d *ir.OpDef) *ir.OpDef {
	d.Family = "foreign"
	d.Effect = func(*ir.Op) ir.Effect { return ir.EffectHost }
	d.Infer = func(*ir.Op) ([]ir.Type, error) { return []ir.Type{}, nil }
	d.Cost = func(op *ir.Op) ir.Cost { return ir.Cost{Bytes: ownBytes(op)} }
	d.NoGrad, d.NoGradZero = "it has no results", true
	d.HandScheduled = "host: comes with the runtime that calls back"
	return d
}

func printRow() *ir.OpDef {
	return hostOp(&ir.OpDef{
		Name:     "print",
		Doc:      "Prints `message` and the operands (the first eight elements of each) to standard error. Exactly once for each time the program comes by, never in a recomputation.",
		Operands: []string{"args…"},
		Attrs:    []ir.AttrDef{{Name: "message", Kind: "string", Default: "", Doc: "text before the values"}},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			line := op.Attrs.Str("message")
			for i, t := range in {
				line += fmt.Sprintf(" %v", op.In(i))
				if t.DType == dtype.Key {
					continue
				}
				for k := range min(t.Len(), 8) {
					b := accGet(t, k)
					switch {
					case t.DType == dtype.F64:
						line += fmt.Sprintf(" %v", from64(b))
					case t.DType.IsFloat():
						line += fmt.Sprintf(" %v", from32(b))
					default:
						line += fmt.Sprintf(" %v", extend(t.DType, b))
					}
				}
			}
			_, err := fmt.Fprintln(os.Stderr, strings.TrimSpace(line))
			return nil, err
		},
	})
}

func assertRow() *ir.OpDef {
	return hostOp(&ir.OpDef{
		Name:     "assert",
		Doc:      "Stops the program with `message` unless all elements of `pred` are true.",
		Operands: []string{"pred"},
		Attrs:    []ir.AttrDef{{Name: "message", Kind: "string", Default: "", Doc: "what is wrong where pred is false"}},
		Constraints: []ir.Constraint{{Label: "C1", Text: "pred is of bool", Check: func(op *ir.Op) error {
			if op.In(0).DType != dtype.Bool {
				return fmt.Errorf("pred is %v", op.In(0))
			}
			return nil
		}}},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			for i := range in[0].Len() {
				if in[0].Data[i] == 0 {
					return nil, fmt.Errorf("assertion failed: %s (element %d of %v is false)", op.Attrs.Str("message"), i, op.In(0))
				}
			}
			return nil, nil
		},
	})
}

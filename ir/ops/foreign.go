package ops

import (
	le "encoding/binary"
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

// foreignRank is an error where a type has more dimensions than a description of a call.
func foreignRank(ts []ir.Type) error {
	for _, t := range ts {
		if t.Rank() > MaxForeignRank {
			return fmt.Errorf("%v has more than %d dimensions", t, MaxForeignRank)
		}
	}
	return nil
}

// foreignDets and foreignEffects are what a foreign kernel may declare.
func foreignDets() []ir.Det { return []ir.Det{ir.Exact, ir.Keyed, ir.Tol, ir.Decides, ir.Unknown} }

func foreignEffects() []ir.Effect {
	return []ir.Effect{ir.EffectNone, ir.EffectReads, ir.EffectWrites, ir.EffectComm, ir.EffectHost}
}

// MaxForeignRank is the greatest rank of an array of a foreign kernel.
const MaxForeignRank = 16

func foreignRow() *ir.OpDef {
	dets, effects := foreignDets(), foreignEffects()
	words := func(n int, word func(i int) string) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = word(i)
		}
		return out
	}
	return &ir.OpDef{
		Name: "foreign", Family: "foreign",
		Doc: "Calls the C function `symbol` of `library`: a kernel that is not ours, with the types of its results in `results` (docs/foreign.md). Unless `determinism` says otherwise nothing " +
			"is known of it, so it runs once, is never recomputed, and what it gives is kept. The interpreter calls the same function. Its derivative is the function `vjp`, which is given the " +
			"operands, the results and the cotangents of the float results, and gives those of the float operands; that of a collective (effect comm) is one too.",
		Operands: []string{"args…"}, Results: []string{"results…"},
		Attrs: []ir.AttrDef{
			{Name: "symbol", Kind: "string", Doc: "name of the function"},
			{Name: "library", Kind: "string", Default: "", Doc: "shared library that has it, absolute or relative to the binary's directory; empty: the process itself"},
			{Name: "results", Kind: "strings", Doc: "types of the results, e.g. f32[2,3]"},
			{Name: "determinism", Kind: "string", Default: "unknown", Doc: "exact, keyed, tol, decides or unknown"},
			{Name: "effect", Kind: "string", Default: "none", Doc: "none, reads, writes, comm or host"},
			{Name: "tiles", Kind: "int", Default: int64(1), Doc: "pieces of work that threads may run in any order and at once; 1: one thread runs it"},
			{Name: "cost_ns", Kind: "int", Default: int64(-1), Doc: "time of one run in ns; -1: no cost model, so it is rather kept than run again"},
			{Name: "vjp", Kind: "string", Default: "", Doc: "function of the same library that is its derivative; empty: it has none"},
			{Name: "variant", Kind: "string", Default: "", Doc: "which of several implementations the function is to take; part of its identity, so a clone has its original's"},
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
			return ts, foreignRank(append(typesOf(op.Operands), ts...))
		},
		Constraints: []ir.Constraint{
			oneOf("C1", "determinism", words(len(dets), func(i int) string { return dets[i].String() })...),
			oneOf("C2", "effect", words(len(effects), func(i int) string { return effects[i].String() })...),
			{Label: "C3", Text: "there is at least one tile, and only one where there is an effect", Check: func(op *ir.Op) error {
				if n := op.Attrs.Int("tiles"); n < 1 || n > 1<<30 || n > 1 && op.Attrs.Str("effect") != "none" {
					return fmt.Errorf("%d tiles, effect %s", n, op.Attrs.Str("effect"))
				}
				return nil
			}},
			{Label: "C4", Text: "symbol and vjp are names in C", Check: func(op *ir.Op) error {
				if s := op.Attrs.Str("symbol"); !isCName(s) {
					return fmt.Errorf("symbol %q", s)
				}
				if s := op.Attrs.Str("vjp"); s != "" && !isCName(s) {
					return fmt.Errorf("vjp %q", s)
				}
				return nil
			}},
			{Label: "C5", Text: "cost_ns is a time, at most 2^50, or -1", Check: func(op *ir.Op) error {
				if n := op.Attrs.Int("cost_ns"); n < -1 || n > 1<<50 {
					return fmt.Errorf("cost_ns %d", n)
				}
				return nil
			}},
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
		VJP:           foreignVJP,
		HandScheduled: "foreign",
		Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return e.Foreign(op, in)
		},
	}
}

func isCName(s string) bool {
	for i, c := range []byte(s) {
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

// foreignVJP calls the function that a foreign kernel names as its derivative.
func foreignVJP(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	symbol := op.Attrs.Str("vjp")
	if symbol == "" {
		return nil, noDerivative(op, "foreign kernel %q names no function that computes one", op.Attrs.Str("symbol")).
			WithHint("put stop_gradient before it, or give it one: vjp=\"SYMBOL\" (docs/foreign.md)")
	}
	args := append(append([]*ir.Value{}, op.Operands...), op.Results...)
	for i, d := range douts {
		t := op.Out(i)
		if !t.DType.IsFloat() {
			continue
		}
		if d == nil {
			d = Full(b, t, 0)
		}
		args = append(args, d)
	}
	var types []string
	for _, v := range op.Operands {
		if v.Type.DType.IsFloat() {
			types = append(types, v.Type.String())
		}
	}
	attrs := []ir.Attr{ir.A("symbol", symbol), ir.A("results", types)}
	for _, name := range []string{"library", "determinism", "tiles", "cost_ns", "variant"} {
		attrs = append(attrs, ir.A(name, op.Attrs.Get(name)))
	}
	if op.Effect() == ir.EffectComm {
		attrs = append(attrs, ir.A("effect", ir.EffectComm.String()))
	}
	grads := b.Multi("foreign", args, nil, attrs...).Results
	out := make([]*ir.Value, len(op.Operands))
	for i, v := range op.Operands {
		if v.Type.DType.IsFloat() {
			out[i], grads = grads[0], grads[1:]
		}
	}
	return out, nil
}

// ForeignCall is what a foreign kernel is told of its call: struct reprise_call of
// runtime/native/src/reprise_foreign.h, little endian.
func ForeignCall(op *ir.Op) []byte {
	return callOf(op, op.Attrs.Int("tiles"), op.Attrs.Str("variant"))
}

// PrintCall is what the driver is told of a print: as a foreign kernel is of its call, and behind it the text, with a
// zero at its end.
func PrintCall(op *ir.Op) []byte {
	return append(append(callOf(op, 1, ""), printText(op)...), 0)
}

// printText is op's message, on one line.
func printText(op *ir.Op) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, op.Attrs.Str("message")))
}

func callOf(op *ir.Op, tiles int64, name string) []byte {
	var b []byte
	i32 := func(vs ...int) {
		for _, v := range vs {
			b = le.LittleEndian.AppendUint32(b, uint32(int32(v)))
		}
	}
	i64 := func(v int64) { b = le.LittleEndian.AppendUint64(b, uint64(v)) }
	i32(1, len(op.Operands), len(op.Results), 0)
	i64(tiles)
	var variant [40]byte
	copy(variant[:len(variant)-1], name)
	b = append(b, variant[:]...)
	array := func(t ir.Type) {
		i32(int(t.DType), t.Rank())
		i64(t.Bytes())
		for k := range MaxForeignRank {
			n := int64(1)
			if k < t.Rank() {
				n = t.Shape[k]
			}
			i64(n)
		}
	}
	for _, v := range op.Operands {
		array(v.Type)
	}
	for _, v := range op.Results {
		array(v.Type)
	}
	return b
}

func hostOp(d *ir.OpDef) *ir.OpDef {
	d.Family = "foreign"
	d.Effect = func(*ir.Op) ir.Effect { return ir.EffectHost }
	d.Infer = func(op *ir.Op) ([]ir.Type, error) { return []ir.Type{}, foreignRank(typesOf(op.Operands)) }
	d.Cost = func(op *ir.Op) ir.Cost { return ir.Cost{Bytes: ownBytes(op)} }
	d.NoGrad, d.NoGradZero = "it has no results", true
	d.HandScheduled = "host"
	return d
}

func printRow() *ir.OpDef {
	return hostOp(&ir.OpDef{
		Name:     "print",
		Doc:      "Writes a line with `message` and the operands (type and first eight elements of each) to standard error. Exactly once for each time the program comes by, in the order of the program, never in a recomputation.",
		Operands: []string{"args…"},
		Attrs:    []ir.AttrDef{{Name: "message", Kind: "string", Default: "", Doc: "text before the values"}},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			line := printText(op)
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
					case t.DType == dtype.U64:
						line += fmt.Sprintf(" %v", b)
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
		Doc:      "Ends the step with an error that says the layer and `message` unless all elements of `pred` are true. What the step has written of the state by then stays.",
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
					return nil, fmt.Errorf("assertion failed: %s (element %d of %d is false)", op.Attrs.Str("message"), i, in[0].Len())
				}
			}
			return nil, nil
		},
	})
}

package nn

import "reprise/ir"

// Foreign is a C function of a shared library that a model calls (docs/foreign.md). Library and
// Symbol say which; all else is what the caller declares of it.
type Foreign struct {
	Library string // path, absolute or relative to the compiled program's directory; "": the process
	Symbol  string

	// Determinism is "exact", "keyed", "tol", "decides" or "unknown". "" is unknown: the function runs
	// once in a step, whatever the budget.
	Determinism string
	Effect      string // "none", "reads", "writes", "comm" or "host"; "" is none
	Tiles       int64  // pieces that threads may run in any order and at once; 0 is 1
	CostNs      int64  // time of one run; 0: no cost model, so its results are kept rather than computed again
	VJP         string // function of the same library that is its derivative; "": it has none
	Variant     string // handed to the function; part of the op's identity
}

// Foreign calls a foreign kernel on args; its results have the given types.
func (s *Scope) Foreign(f Foreign, results []ir.Type, args ...*Tensor) []*Tensor {
	types := make([]string, len(results))
	for i, t := range results {
		types[i] = t.String()
	}
	attrs := []ir.Attr{ir.A("symbol", f.Symbol), ir.A("library", f.Library), ir.A("results", types), ir.A("vjp", f.VJP), ir.A("variant", f.Variant)}
	for _, a := range []struct{ name, word string }{{"determinism", f.Determinism}, {"effect", f.Effect}} {
		if a.word != "" {
			attrs = append(attrs, ir.A(a.name, a.word))
		}
	}
	if f.Tiles != 0 {
		attrs = append(attrs, ir.A("tiles", f.Tiles))
	}
	if f.CostNs != 0 {
		attrs = append(attrs, ir.A("cost_ns", f.CostNs))
	}
	return s.Ops("foreign", args, attrs...)
}

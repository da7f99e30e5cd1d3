package nn

import (
	"strings"

	"reprise/internal/diag"
)

// Name gives x a name, by which policies and reports know it (docs/policies.md), and returns x. It changes
// nothing that is computed, but a named value exists in memory: it is not taken into the
// op that reads it. A name has no spaces, commas or wildcards; several values may have the same one,
// as in the layers of a list.
func Name(x *Tensor, name string) *Tensor {
	if name == "" || strings.ContainsAny(name, " \t\n,;*?%#=\"") || strings.Trim(name, "0123456789") == "" {
		e := diag.Errorf("name", "%q can't be the name of a value", name).
			WithHint("use letters, digits, _ . - and /, and not digits alone")
		mark(e, x)
		diag.Throw(e)
	}
	x.Mark(name, false)
	return x
}

// Pin has x computed once and kept to its last use, whatever policy and budget, and returns x. It is for
// correctness: for what must not be computed a second time, and can't be known to the op.
func Pin(x *Tensor) *Tensor {
	if x.Op == nil {
		e := diag.Errorf("name", "%q is a %s of the step: it is in memory from start to end and can't be pinned", x.Name, x.Role())
		mark(e, x)
		diag.Throw(e)
	}
	x.Mark("", true)
	return x
}

func mark(e *diag.Error, x *Tensor) {
	if x.Op != nil {
		e.Layer, e.File, e.Line, e.Op = x.Op.Loc.Layer, x.Op.Loc.File, x.Op.Loc.Line, x.Op.Name()
	}
}

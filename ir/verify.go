package ir

import (
	"fmt"
	"slices"

	"reprise/internal/diag"
)

// Verify checks a module whole: structure, names, types and constraints of every op,
// visibility (regions see only their own parameters), clones and random op ids. It is
// run after parsing and after every pass. The error names function, layer and op; its
// message ends in the label of the broken rule:
//
//	V1 a value is defined once, before its uses, in the block that uses it; ids are in range, and no two alike
//	V2 names are unique in a function, and not empty
//	V3 every op has a layer path
//	V4 result types are those that the op's row infers; operands, attributes and
//	   regions are as the row says, its constraints hold
//	V5 results of a function have distinct names; a new value of a state parameter has its type
//	V6 a clone has the op, the attributes and the result types of its original, which stands before it in
//	   the same block and is no clone itself; an op with an effect has no clone, but for collectives of layers
//	   in the module's recompute_allowed
//	V7 no two originals share a random op id, unless the later is a derivative, a turn of an unrolled loop, or fused into a reader
func Verify(m *Module) error {
	seen := map[string]bool{}
	rng := map[int64]*Op{}
	for _, f := range m.Funcs {
		if f.Name == "" || seen[f.Name] {
			return diag.Errorf("verify", "function name %q is empty or taken (V2)", f.Name)
		}
		seen[f.Name] = true
		v := &verifier{f: f, names: map[string]bool{}, numbers: make([]bool, f.numValues), values: make([]*Value, f.numValues), ops: make([]*Op, f.numOps), rng: rng}
		if err := v.run(); err != nil {
			e := *diag.As(err)
			e.Message = "@" + f.Name + ": " + e.Message
			return &e
		}
	}
	return nil
}

type verifier struct {
	f       *Func
	names   map[string]bool
	numbers []bool   // names that are the number of some value
	values  []*Value // by id: defined so far
	ops     []*Op    // by id: visited
	rng     map[int64]*Op
}

// name takes a name; false: it is taken.
func (v *verifier) name(s string) bool {
	if n, ok := number(s); ok && n < len(v.numbers) {
		taken := v.numbers[n]
		v.numbers[n] = true
		return !taken
	}
	taken := v.names[s]
	v.names[s] = true
	return !taken
}

// number is a name that autoName gives.
func number(s string) (n int, ok bool) {
	if s == "" || len(s) > 9 || s[0] == '0' && s != "0" {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// defined: x was defined before, in b.
func (v *verifier) defined(x *Value, b *Block) bool {
	return x.ID >= 0 && x.ID < len(v.values) && v.values[x.ID] == x && x.Block == b
}

// done: op was visited before.
func (v *verifier) done(op *Op) bool { return op.ID >= 0 && op.ID < len(v.ops) && v.ops[op.ID] == op }

func (v *verifier) run() error {
	f := v.f
	if len(f.Results) != len(f.Body.Results) {
		return diag.Errorf("verify", "%d result names for %d results (V5)", len(f.Results), len(f.Body.Results))
	}
	params, taken := f.ParamsByName(), make(map[string]bool, len(f.Results))
	for i, n := range f.Results {
		if n == "" || taken[n] {
			return diag.Errorf("verify", "result name %q is empty or taken (V5)", n)
		}
		taken[n] = true
		if p := params[n]; p != nil && p.IsState() && !p.Type.Equal(f.Body.Results[i].Type) {
			return diag.Errorf("verify", "new value of %s %q is %s, not %s (V5)", p.Role(), n, f.Body.Results[i].Type, p.Type)
		}
	}
	return v.block(f.Body)
}

func opError(op *Op, format string, args ...any) error {
	return &diag.Error{Code: "verify", Message: fmt.Sprintf(format, args...), Layer: op.Loc.Layer, Op: op.Name(), File: op.Loc.File, Line: op.Loc.Line}
}

func (v *verifier) block(b *Block) error {
	define := func(x *Value) string {
		switch {
		case x.Block != b || x.Block.Func != v.f:
			return "belongs to another block (V1)"
		case x.Name == "" || !v.name(x.Name):
			return "has an empty name, or one that is taken (V2)"
		case x.ID < 0 || x.ID >= v.f.numValues || v.values[x.ID] != nil:
			return "has an id out of range, or one that is taken (V1)"
		}
		v.values[x.ID] = x
		return ""
	}
	for _, p := range b.Params {
		if msg := define(p); msg != "" {
			return diag.Errorf("verify", "parameter %%%s %s", p.Name, msg)
		}
	}
	for _, op := range b.Ops {
		if op.Loc.Layer == "" {
			return opError(op, "no layer path (V3)")
		}
		if op.Block != b {
			return opError(op, "belongs to another block (V1)")
		}
		for _, x := range op.Operands {
			if !v.defined(x, b) {
				return opError(op, "%%%s is used before it is defined, or from another block (V1)", x.Name)
			}
		}
		for _, r := range op.Regions {
			if r.Owner != op {
				return opError(op, "region belongs to another op (V1)")
			}
			if err := v.block(r); err != nil {
				return err
			}
		}
		types, err := op.Def.check(op)
		if err != nil {
			e := *diag.As(err)
			e.Message += " (V4)"
			return &e
		}
		if len(types) != len(op.Results) {
			return opError(op, "%d results, want %d (V4)", len(op.Results), len(types))
		}
		for j, r := range op.Results {
			if r.Op != op || r.Index != j {
				return opError(op, "result %%%s belongs to another op (V1)", r.Name)
			}
			if !r.Type.Equal(types[j]) {
				return opError(op, "result %%%s is %s, want %s (V4)", r.Name, r.Type, types[j])
			}
			if msg := define(r); msg != "" {
				return opError(op, "result %%%s %s", r.Name, msg)
			}
		}
		if err := v.identity(op); err != nil {
			return err
		}
		if op.ID < 0 || op.ID >= len(v.ops) || v.ops[op.ID] != nil {
			return opError(op, "has an id out of range, or one that is taken (V1)")
		}
		v.ops[op.ID] = op
	}
	for _, x := range b.Results {
		if !v.defined(x, b) {
			if b.Owner != nil {
				return opError(b.Owner, "a region yields %%%s, which it does not define (V1)", x.Name)
			}
			return diag.Errorf("verify", "returns %%%s, which is not defined (V1)", x.Name)
		}
	}
	return nil
}

// identity checks V6 and V7.
func (v *verifier) identity(op *Op) error {
	o := op.Remat
	if o != nil {
		switch {
		case !v.done(o) || o.Block != op.Block || o.Remat != nil:
			return opError(op, "clone of an op that does not stand before it as an original (V6)")
		case o.Def.Name != op.Def.Name || attrsText(o.Attrs) != attrsText(op.Attrs) || len(o.Results) != len(op.Results):
			return opError(op, "clone of %s %s differs from it: %s (V6)", o.Name(), attrsText(o.Attrs), attrsText(op.Attrs))
		case op.Effect() == EffectComm && slices.Contains(v.f.Module.Attrs.Strs(RecomputeAllowed), op.Loc.Layer):
		case op.Effect() != EffectNone:
			return opError(op, "clone of an op with effect %s (V6)", op.Effect())
		}
		for i, r := range op.Results {
			if !r.Type.Equal(o.Results[i].Type) {
				return opError(op, "clone gives %s, its original %s (V6)", r.Type, o.Results[i].Type)
			}
		}
		return nil
	}
	id, random := op.Attrs.Get("rng").(int64)
	if !random || op.Det() != Keyed || IsCopy(op.Loc) || insideClone(op) {
		return nil
	}
	if first := v.rng[id]; first != nil {
		return opError(op, "random op id %d is already that of %s in layer %s (V7)", id, first.Name(), first.Loc.Layer)
	}
	v.rng[id] = op
	return nil
}

// IsCopy reports whether an op was written from another by differentiation, inlining, unrolling or
// fusion into a reader: it then shares the other's random op id, on purpose.
func IsCopy(l Loc) bool {
	return slices.ContainsFunc(l.Prov, func(p string) bool { return p == "vjp" || p == "inline" || p == "unroll" || p == "fuse" })
}

func insideClone(op *Op) bool {
	for b := op.Block; b.Owner != nil; b = b.Owner.Block {
		if b.Owner.Remat != nil {
			return true
		}
	}
	return false
}

package ir

import (
	"fmt"

	"reprise/internal/diag"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

// OpDef is the row of an op: all that is known of it.
type OpDef struct {
	Name   string
	Family string // file of its row and section of docs/ir.md
	Doc    string // what it computes, with shapes; Markdown
	// Operands names the operands; a last name that ends in "…" stands for any number.
	// Optional operands end in "?", and may only be left out from the end.
	Operands []string
	Results  []string // likewise
	Attrs    []AttrDef
	Regions  []string // names of the regions

	// Infer gives the result types. Operands, attributes and regions are set; an error
	// names the shapes that do not fit.
	Infer       func(op *Op) ([]Type, error)
	Constraints []Constraint

	Effect func(op *Op) Effect // nil: none
	Det    func(op *Op) Det    // nil: exact
	Cost   func(op *Op) Cost   // nil: one flop per result element, all operands and results once

	// VJP gives the cotangents of the operands from those of the results: nil where there
	// is none (integers, decisions). douts[i] is nil where result i has no cotangent.
	// A nil VJP means that no gradient exists; see NoGrad.
	VJP func(b *Builder, op *Op, douts []*Value) ([]*Value, error)
	// NoGrad, for a nil VJP, says why there is none: where NoGradZero, the gradient is
	// zero almost everywhere and differentiation stops silently; otherwise it is an error.
	NoGrad     string
	NoGradZero bool

	// Routes lists the operands that say where data go, how many, or which way control goes:
	// indices, counts, predicates. nil: none. What decides them is made once (passes/pinned).
	Routes func(op *Op) []int

	// Ref is the reference semantics: plain Go, normative.
	Ref func(e Eval, op *Op, in []*tensor.Tensor) ([]*tensor.Tensor, error)

	// Expand, for a composite op (softmax, norms, losses, optimizer steps), writes it in simpler
	// ops; the composite means exactly that, in that order, and is lowered through it.
	Expand func(b *Builder, op *Op) []*Value

	// Elem is the kernel body of a map: the elements of the results at idx (one index per
	// dimension of the results, i64), from elements of the operands. Results of an op with Elem have
	// all the same shape. Values of f16, bf16 are carried as f32 (kern has no arithmetic
	// on them) and must be rounded: see ElemCtx.Round.
	Elem func(c ElemCtx, op *Op, idx []*kern.Expr) []*kern.Expr

	// Kern gives the kernels of an op that is no map (scatter, sort, scans, …).
	Kern func(op *Op) ([]KernelUse, error)
	// HandScheduled names the family ("contract", "conv", "attention", "reduce", "control")
	// that the lowering pass treats by itself; or says why an op has no kernel ("host", …).
	HandScheduled string
}

// AttrDef describes an attribute.
type AttrDef struct {
	Name    string
	Kind    string // "int", "float", "bool", "string", "ints", "strings", "dtype", "tensor"
	Default any    // nil: required
	Doc     string
}

// Constraint is a labelled condition that the verifier checks; the label recurs in
// messages, in docs/ir.md and in test names ("matmul/C2").
type Constraint struct {
	Label string
	Text  string
	Check func(op *Op) error
}

// Cost of running an op once.
type Cost struct {
	Flops int64 // floating-point operations; an fma counts two
	Bytes int64 // memory traffic, operands and results
}

// Eval lets reference semantics run regions and functions.
type Eval interface {
	Block(b *Block, args []*tensor.Tensor) ([]*tensor.Tensor, error)
	Call(name string, args []*tensor.Tensor) ([]*tensor.Tensor, error)
	// Foreign runs a foreign kernel.
	Foreign(op *Op, args []*tensor.Tensor) ([]*tensor.Tensor, error)
}

// ElemCtx is what a map's kernel body is written against. Expressions of f16 and bf16
// values have DType f32, those of bool are bool, of key values not allowed (KeyWord).
type ElemCtx interface {
	// Arg is the element of operand i at idx.
	Arg(i int, idx ...*kern.Expr) *kern.Expr
	// ArgIf is Arg where cond holds, otherwise other; memory is read only where cond holds.
	ArgIf(cond *kern.Expr, i int, other *kern.Expr, idx ...*kern.Expr) *kern.Expr
	// KeyWord is u32 word w (0…3: seed low, seed high, step, micro) of the key operand i.
	KeyWord(i, w int) *kern.Expr
	// Loop runs body for i = 0 … n-1, carrying acc; the result is the last acc.
	Loop(n int64, init []*kern.Expr, body func(i *kern.Expr, acc []*kern.Expr) []*kern.Expr) []*kern.Expr
	// Random is the 32 random bits of op id rng for the element idx of a random op of the
	// given shape (docs/numerics.md, Philox), with the key operand i.
	Random(i int, rng uint32, shape []int64, idx []*kern.Expr) *kern.Expr
	// Round rounds an f32 expression to the element type d (f16, bf16), giving f32 again.
	Round(x *kern.Expr, d dtype.Type) *kern.Expr
}

// KernelUse is one launch of a kernel of an op: Args index the op's buffers, operands
// first, then results, then workspaces.
type KernelUse struct {
	Kernel     *kern.Kernel
	Args       []int
	Workspaces []int64 // bytes; numbered after the results, shared by the op's kernel uses in order of appearance
}

// Table is the set of ops. It is built by ops.Table and never changes.
type Table struct {
	defs   []*OpDef
	byName map[string]*OpDef
}

// NewTable makes a table of rows; names must differ.
func NewTable(defs []*OpDef) *Table {
	t := &Table{defs: defs, byName: make(map[string]*OpDef, len(defs))}
	for _, d := range defs {
		if t.byName[d.Name] != nil {
			panic("BUG: two rows for op " + d.Name)
		}
		t.byName[d.Name] = d
	}
	return t
}

// All lists the rows in their order.
func (t *Table) All() []*OpDef { return t.defs }

// Lookup finds a row, nil where there is none.
func (t *Table) Lookup(name string) *OpDef { return t.byName[name] }

// Must finds a row that has to exist.
func (t *Table) Must(name string) *OpDef {
	d := t.byName[name]
	if d == nil {
		panic("BUG: no op " + name)
	}
	return d
}

// CostOf is the op's cost, by its row or by default.
func CostOf(op *Op) Cost {
	if op.Def.Cost != nil {
		return op.Def.Cost(op)
	}
	c := Cost{}
	for _, v := range op.Operands {
		c.Bytes += v.Type.Bytes()
	}
	for _, v := range op.Results {
		c.Bytes += v.Type.Bytes()
		c.Flops += v.Type.Len()
	}
	return c
}

// check is Infer and the constraints on an op whose operands, attributes and regions
// are set; it gives the result types.
func (d *OpDef) check(op *Op) ([]Type, error) {
	fail := func(err error) error {
		e := diag.As(err)
		if e.Code == "error" {
			e.Code = "shape"
		}
		e.Op = d.Name
		if e.Layer == "" {
			e.Layer = op.Loc.Layer
		}
		if e.File == "" {
			e.File, e.Line = op.Loc.File, op.Loc.Line
		}
		return e
	}
	if err := d.checkArity(op); err != nil {
		return nil, fail(err)
	}
	if err := d.checkAttrs(op); err != nil {
		return nil, fail(err)
	}
	types, err := d.Infer(op)
	if err != nil {
		return nil, fail(err)
	}
	for _, c := range d.Constraints {
		if err := c.Check(op); err != nil {
			return nil, fail(fmt.Errorf("%v (constraint %s/%s: %s)", err, d.Name, c.Label, c.Text))
		}
	}
	return types, nil
}

// arity is the least and greatest number of names; -1: any.
func arity(names []string) (lo, hi int) {
	for _, n := range names {
		switch {
		case len(n) > 3 && n[len(n)-3:] == "…":
			return lo, -1
		case n[len(n)-1] == '?':
			hi++
		default:
			lo++
			hi++
		}
	}
	return lo, hi
}

func (d *OpDef) checkArity(op *Op) error {
	lo, hi := arity(d.Operands)
	if n := len(op.Operands); n < lo || hi >= 0 && n > hi {
		return fmt.Errorf("%d operands, want %v", n, d.Operands)
	}
	if len(op.Regions) != len(d.Regions) && !(len(d.Regions) == 1 && d.Regions[0] == "branch…") {
		return fmt.Errorf("%d regions, want %v", len(op.Regions), d.Regions)
	}
	return nil
}

func (d *OpDef) checkAttrs(op *Op) error {
	for _, a := range op.Attrs {
		ad := d.attr(a.Name)
		if ad == nil {
			return fmt.Errorf("unknown attribute %q, want one of %v", a.Name, d.attrNames())
		}
		if k := kindOf(a.Val); k != ad.Kind && !(k == "int" && ad.Kind == "float") {
			return fmt.Errorf("attribute %q is %s, want %s", a.Name, k, ad.Kind)
		}
	}
	for i := range d.Attrs {
		ad := &d.Attrs[i]
		if op.Attrs.Get(ad.Name) != nil {
			continue
		}
		if ad.Default == nil {
			return fmt.Errorf("attribute %q is missing (%s)", ad.Name, ad.Doc)
		}
		op.Attrs = op.Attrs.Set(ad.Name, ad.Default)
	}
	return nil
}

func (d *OpDef) attr(name string) *AttrDef {
	for i := range d.Attrs {
		if d.Attrs[i].Name == name {
			return &d.Attrs[i]
		}
	}
	return nil
}

func (d *OpDef) attrNames() []string {
	names := []string{}
	for i := range d.Attrs {
		names = append(names, d.Attrs[i].Name)
	}
	return names
}

func kindOf(v any) string {
	switch v.(type) {
	case int64:
		return "int"
	case float64:
		return "float"
	case bool:
		return "bool"
	case string:
		return "string"
	case []int64:
		return "ints"
	case []string:
		return "strings"
	case dtype.Type:
		return "dtype"
	case *tensor.Tensor:
		return "tensor"
	}
	return fmt.Sprintf("%T", v)
}

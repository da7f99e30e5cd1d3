package ir

import (
	"fmt"

	"reprise/internal/diag"
)

// Builder appends ops to a block. Mistakes (a shape that does not fit) are thrown as
// *diag.Error: defer diag.Catch where building starts.
type Builder struct {
	Table *Table
	Block *Block
	Loc   Loc
}

// NewBuilder builds at the end of b.
func NewBuilder(t *Table, b *Block, loc Loc) *Builder { return &Builder{t, b, loc} }

// At is a builder at the same place with another location.
func (b *Builder) At(loc Loc) *Builder { return &Builder{b.Table, b.Block, loc} }

// Op appends an op and returns its single result.
func (b *Builder) Op(name string, operands []*Value, attrs ...Attr) *Value {
	op := b.Multi(name, operands, nil, attrs...)
	if len(op.Results) != 1 {
		panic(fmt.Sprintf("BUG: %s has %d results", name, len(op.Results)))
	}
	return op.Results[0]
}

// Multi appends an op with any number of results and regions.
func (b *Builder) Multi(name string, operands []*Value, regions []*Block, attrs ...Attr) *Op {
	def := b.Table.Lookup(name)
	if def == nil {
		diag.Throw(&diag.Error{Code: "op", Message: fmt.Sprintf("unknown op %q", name), Layer: b.Loc.Layer, File: b.Loc.File, Line: b.Loc.Line})
	}
	op, err := b.Block.Func.MakeOp(def, operands, MakeAttrs(attrs...), regions, b.Loc)
	if err != nil {
		diag.Throw(diag.As(err))
	}
	b.Block.Append(op)
	return op
}

// MakeOp makes an op whose result types are inferred, not placed in a block.
func (f *Func) MakeOp(def *OpDef, operands []*Value, attrs Attrs, regions []*Block, loc Loc) (*Op, error) {
	probe := &Op{Def: def, Operands: operands, Attrs: attrs, Regions: regions, Loc: loc, Block: &Block{Func: f}}
	types, err := def.check(probe)
	if err != nil {
		return nil, err
	}
	return f.NewOp(def, operands, types, probe.Attrs, regions, loc), nil
}

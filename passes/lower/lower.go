// Package lower turns ops into launches of kernels: maps, row programs and
// reductions into the loop language, contractions (with their epilogues), convolutions and
// attention into the hand-scheduled families. It makes no choice that could change a bit: the
// order of arithmetic comes from the op table.
package lower

import (
	"bytes"
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// RefKind says what a kernel argument is.
type RefKind uint8

// Kinds of arguments.
const (
	Operand RefKind = iota
	Result
	Workspace
)

// Ref names a buffer of the op.
type Ref struct {
	Kind  RefKind
	Index int
}

// Launch is one kernel of an op with its arguments, in the order of the kernel's
// parameters. Exactly one of the kernels is set.
type Launch struct {
	Kern      *kern.Kernel
	Contract  *kern.Contract
	Attention *kern.Attention
	Conv      *kern.Conv
	Foreign   *Foreign
	Host      *Host
	Args      []Ref
}

// Foreign is a function of a shared library with the interface of a kernel, whose first argument is
// a description of the call; Launch.Args are those behind it.
type Foreign struct {
	Library, Symbol string
	Tiles           int64
	Call            []byte
}

// Host is what the driver does itself, without a kernel: op print or op assert.
type Host struct {
	Print []byte // a description of the call (ops.PrintCall); nil: an assertion
	Says  string // what is wrong where the assertion does not hold
}

// Lowered is an op as launches, to be run in order.
type Lowered struct {
	Launches   []Launch
	Workspaces []int64 // bytes
	// InPlace lists (operand, result) pairs that may share memory: every element of the
	// operand is read before the same element of the result is written, by the same tile.
	InPlace [][2]int
}

// IsView reports whether op's result is its first operand's memory: nothing is launched.
func IsView(op *ir.Op) bool {
	switch op.Name() {
	case "reshape", "stop_gradient", "optimization_barrier", "copy":
		return len(op.Results) == len(op.Operands)
	}
	return false
}

// IsConstant reports whether op is a dense constant, kept in the constant pool.
func IsConstant(op *ir.Op) bool { return op.Name() == "constant" && !inlineConstant(op) }

// Op lowers one op of a function's body or of a control-flow region.
func Op(op *ir.Op) (*Lowered, error) {
	l, err := lowerOp(op)
	if err != nil {
		e := *diag.As(err)
		if e.Layer == "" {
			e.Layer = op.Loc.Layer
		}
		if e.Op == "" {
			e.Op = op.Name()
		}
		return nil, &e
	}
	return l, nil
}

func lowerOp(op *ir.Op) (*Lowered, error) {
	switch {
	case op.Def.HandScheduled == "attention":
		return attention(op)
	case op.Name() == "foreign":
		return foreign(op), nil
	case op.Def.HandScheduled == "host":
		return host(op), nil
	case op.Name() == "conv" && op.In(0).DType == dtype.F32 && op.In(1).DType == dtype.F32:
		if c := ops.ConvKernel(op); c != nil {
			return &Lowered{Launches: []Launch{{Conv: c, Args: []Ref{{Operand, 0}, {Operand, 1}, {Result, 0}}}}}, nil
		}
	case op.Def.Kern != nil:
		uses, err := op.Def.Kern(op)
		if err != nil {
			return nil, err
		}
		out := &Lowered{}
		for _, u := range uses {
			l := Launch{Kern: u.Kernel}
			out.Workspaces = append(out.Workspaces, u.Workspaces...)
			for _, a := range u.Args {
				switch n, m := len(op.Operands), len(op.Results); {
				case a < n:
					l.Args = append(l.Args, Ref{Operand, a})
				case a < n+m:
					l.Args = append(l.Args, Ref{Result, a - n})
				default:
					l.Args = append(l.Args, Ref{Workspace, a - n - m})
				}
			}
			out.Launches = append(out.Launches, l)
		}
		return out, nil
	}
	p, err := newProgram(op)
	if err != nil {
		return nil, err
	}
	return p.lower()
}

func foreign(op *ir.Op) *Lowered {
	l := Launch{Foreign: &Foreign{Library: op.Attrs.Str("library"), Symbol: op.Attrs.Str("symbol"), Tiles: op.Attrs.Int("tiles"), Call: ops.ForeignCall(op)}}
	for i := range op.Operands {
		l.Args = append(l.Args, Ref{Operand, i})
	}
	for i := range op.Results {
		l.Args = append(l.Args, Ref{Result, i})
	}
	return &Lowered{Launches: []Launch{l}}
}

func host(op *ir.Op) *Lowered {
	l := Launch{Host: &Host{Says: op.Attrs.Str("message")}}
	if op.Name() == "print" {
		l.Host = &Host{Print: ops.PrintCall(op)}
	}
	for i := range op.Operands {
		l.Args = append(l.Args, Ref{Operand, i})
	}
	return &Lowered{Launches: []Launch{l}}
}

// program is what becomes one fused kernel: a list of ops over leaf buffers.
type program struct {
	name   string
	ops    []*ir.Op
	leaves map[*ir.Value]int // operand index
	leaf   []*ir.Value       // by operand index
	outs   []*ir.Value
}

func newProgram(op *ir.Op) (*program, error) {
	p := &program{leaves: map[*ir.Value]int{}, name: op.Name()}
	if op.Name() == "fused" {
		b := op.Regions[0]
		p.ops, p.outs, p.leaf = b.Ops, b.Results, b.Params
		p.name = ""
		for _, o := range b.Ops {
			switch o.Name() {
			case "broadcast", "constant", "reshape", "iota":
			default:
				p.name = o.Name()
			}
		}
	} else {
		p.ops, p.outs, p.leaf = []*ir.Op{op}, op.Results, op.Operands
	}
	for i, v := range p.leaf {
		if _, ok := p.leaves[v]; !ok {
			p.leaves[v] = i
		}
	}
	for _, o := range p.ops {
		if !Fusible(o) {
			return nil, diag.Errorf("lower", "no kernel: %s", reason(o))
		}
	}
	return p, nil
}

func reason(op *ir.Op) string {
	if op.Def.HandScheduled != "" {
		return op.Def.HandScheduled
	}
	return "op " + op.Name() + " has no lowering for this target"
}

// Fusible reports whether op may stand in a program: maps, reductions, contractions of
// floats, reshapes and inline constants.
func Fusible(op *ir.Op) bool {
	switch op.Name() {
	case "reshape", "reduce":
		return true
	case "constant":
		return inlineConstant(op)
	case "contract":
		return op.Def.Elem != nil || Contractable(op)
	}
	return op.Def.Elem != nil
}

// inlineConstant: all elements equal, so that it is an immediate.
func inlineConstant(op *ir.Op) bool {
	t := op.Attrs.Tensor("value")
	if t == nil || t.DType == dtype.Key || t.Len() == 0 {
		return false
	}
	n := t.DType.Size()
	return bytes.Equal(t.Data[n:], t.Data[:int64(len(t.Data))-n]) // each is as the one before
}

func (p *program) lower() (*Lowered, error) {
	if !slices.ContainsFunc(p.outs, func(v *ir.Value) bool { return v.Type.Len() > 0 }) {
		return &Lowered{}, nil // no element, nothing to run
	}
	var reduces []*ir.Op
	var contract *ir.Op
	for _, o := range p.ops {
		switch o.Name() {
		case "reduce":
			reduces = append(reduces, o)
		case "contract":
			if Contractable(o) {
				if contract != nil || len(reduces) > 0 {
					return nil, fmt.Errorf("BUG: two roots in one program")
				}
				contract = o
			}
		}
	}
	switch {
	case contract != nil:
		if len(reduces) > 0 {
			return nil, fmt.Errorf("BUG: contraction and reduction in one program")
		}
		return p.lowerContract(contract)
	case len(reduces) == 0:
		if full, rank, ok := p.rowResults(); ok {
			return p.lowerRows(full, rank, nil)
		}
		return p.lowerMap()
	case RowReduce(reduces[0]):
		return p.lowerRows(reduces[0].In(0).Shape, reduces[0].Out(0).Rank(), reduces)
	case !p.onlyResults(reduces):
		return nil, fmt.Errorf("BUG: reductions over leading axes must be the only results")
	case len(reduces) == 1 && !ColumnReduce(reduces[0]):
		return p.lowerLong(reduces[0])
	}
	return p.lowerColumns(reduces)
}

// onlyResults: what the program yields are the results of the given ops, each of them once.
func (p *program) onlyResults(list []*ir.Op) bool {
	return len(p.outs) == len(list) && !slices.ContainsFunc(list, func(o *ir.Op) bool { return !slices.Contains(p.outs, o.Results[0]) })
}

// rowResults: the program has results of a full shape and of its rows, rank leading dimensions.
func (p *program) rowResults() (full []int64, rank int, ok bool) {
	for _, o := range p.outs {
		if full == nil || o.Type.Len() > tensor.Len(full) {
			full = o.Type.Shape
		}
	}
	for _, o := range p.outs {
		if o.Type.Len() < tensor.Len(full) {
			return full, o.Type.Rank(), true
		}
	}
	return full, 0, false
}

// rowsEnough is the number of rows from which a reduction over trailing axes is run a row at a
// time; with fewer, long rows are cut at the chunks of the reduction's order.
const rowsEnough = 16

func reducedLen(red *ir.Op) int64 {
	n := int64(1)
	for _, a := range red.Attrs.Ints("axes") {
		n *= red.In(0).Shape[a]
	}
	return n
}

func trailing(red *ir.Op) bool {
	axes, rank := red.Attrs.Ints("axes"), int64(red.In(0).Rank())
	for i, a := range axes {
		if a != rank-int64(len(axes))+int64(i) {
			return false
		}
	}
	return len(axes) > 0
}

// ColumnReduce reports whether a reduction has its results in lanes, and so may share a sweep with others over the same
// dimensions. Few long rows are cut at their chunks instead.
func ColumnReduce(red *ir.Op) bool {
	return !RowReduce(red) && !(trailing(red) && red.Out(0).Len() < rowsEnough && reducedLen(red) > 0)
}

// RowReduce reports whether a reduction is part of row programs: over trailing axes,
// with many or short rows. Others are kernels of their own (with their producers).
func RowReduce(red *ir.Op) bool {
	n := reducedLen(red)
	return trailing(red) && n > 0 && (red.Out(0).Len() >= rowsEnough || n <= 1024)
}

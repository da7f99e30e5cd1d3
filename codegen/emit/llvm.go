// Package emit turns bodies of the kernel language into LLVM IR: scalar
// statements, and strips in vectors of a chosen width. It is shared by the CPU
// back end, whose contraction and attention emitters use it for epilogues, and
// by the PTX back end, which runs it at width 1.
//
// No instruction that it writes carries a fast-math flag; a fused multiply-add
// is written only for OpFma.
package emit

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
)

// Module is an LLVM module under construction.
type Module struct {
	M          *ir.Module
	intrinsics map[string]*ir.Func
}

// NewModule starts a module; OnModule continues one.
func NewModule() *Module { return OnModule(ir.NewModule()) }

// OnModule wraps a module to which other emitters may add as well.
func OnModule(m *ir.Module) *Module { return &Module{M: m, intrinsics: map[string]*ir.Func{}} }

// Intrinsic is the declaration of an LLVM function, made when first asked for.
func (m *Module) Intrinsic(name string, ret types.Type, params ...types.Type) *ir.Func {
	if f := m.intrinsics[name]; f != nil {
		return f
	}
	for _, f := range m.M.Funcs { // maybe declared by another emitter
		if f.Name() == name {
			m.intrinsics[name] = f
			return f
		}
	}
	ps := make([]*ir.Param, len(params))
	for i, t := range params {
		ps[i] = ir.NewParam("", t)
	}
	f := m.M.NewFunc(name, ret, ps...)
	m.intrinsics[name] = f
	return f
}

// Elem is the LLVM type of one value of t in a register; f16 and bf16 are i16.
func Elem(t dtype.Type) types.Type {
	switch t {
	case dtype.Bool:
		return types.I1
	case dtype.F32:
		return types.Float
	case dtype.F64:
		return types.Double
	}
	return types.NewInt(uint64(8 * t.Size()))
}

// Mem is the LLVM type of one value of t in memory.
func Mem(t dtype.Type) types.Type {
	if t == dtype.Bool {
		return types.I8
	}
	return Elem(t)
}

// Vec is elem for w = 1 and a vector of w of it otherwise.
func Vec(elem types.Type, w int) types.Type {
	if w == 1 {
		return elem
	}
	return types.NewVector(uint64(w), elem)
}

// Type is the LLVM type of w values of t in a register.
func Type(t dtype.Type, w int) types.Type { return Vec(Elem(t), w) }

// lit is a constant in LLVM's own syntax; llir has no splat.
type lit struct {
	typ  types.Type
	text string
}

func (l lit) String() string   { return l.typ.String() + " " + l.text }
func (l lit) Type() types.Type { return l.typ }
func (l lit) Ident() string    { return l.text }

// Literal is the constant with raw bits of type t in all of w lanes.
func Literal(t dtype.Type, w int, bits uint64) value.Value {
	var text string
	switch t {
	case dtype.Bool:
		text = strconv.FormatBool(bits != 0)
	case dtype.F32:
		text = fmt.Sprintf("0x%016X", math.Float64bits(float64(math.Float32frombits(uint32(bits)))))
	case dtype.F64:
		text = fmt.Sprintf("0x%016X", bits)
	default:
		s := 64 - 8*uint(t.Size())
		text = strconv.FormatInt(int64(bits<<s)>>s, 10)
	}
	return splatLit(Elem(t), text, w)
}

func splatLit(elem types.Type, text string, w int) value.Value {
	if w == 1 {
		return lit{elem, text}
	}
	return lit{Vec(elem, w), "splat (" + elem.String() + " " + text + ")"}
}

// IntLit is an integer constant in all of w lanes.
func IntLit(elem types.Type, w int, x int64) value.Value {
	return splatLit(elem, strconv.FormatInt(x, 10), w)
}

// I64 and I32 are integer constants.
func I64(x int64) value.Value { return IntLit(types.I64, 1, x) }
func I32(x int64) value.Value { return IntLit(types.I32, 1, x) }

// Iota is the vector 0, step, 2·step, … of w lanes.
func Iota(elem types.Type, w int, step int64) value.Value { return IotaFrom(elem, w, 0, step) }

// IotaFrom is the vector start, start+step, …; width 1 gives start.
func IotaFrom(elem types.Type, w int, start, step int64) value.Value {
	if w == 1 {
		return IntLit(elem, 1, start)
	}
	bits := elem.(*types.IntType).BitSize
	var b strings.Builder
	b.WriteByte('<')
	for i := range w {
		if i > 0 {
			b.WriteString(", ")
		}
		x := start + int64(i)*step
		if bits < 64 {
			x = x << (64 - bits) >> (64 - bits)
		}
		fmt.Fprintf(&b, "%v %d", elem, x)
	}
	b.WriteByte('>')
	return lit{Vec(elem, w), b.String()}
}

// Zeros is the zero of any type.
func Zeros(t types.Type) value.Value { return lit{t, "zeroinitializer"} }

// Poison is the poison value of any type.
func Poison(t types.Type) value.Value { return lit{t, "poison"} }

// suffix is how intrinsics name a type: f32, v16i32, v8p0.
func suffix(t types.Type) string {
	switch t := t.(type) {
	case *types.VectorType:
		return fmt.Sprintf("v%d%s", t.Len, suffix(t.ElemType))
	case *types.PointerType:
		return fmt.Sprintf("p%d", t.AddrSpace)
	case *types.FloatType:
		switch t.Kind {
		case types.FloatKindHalf:
			return "f16"
		case types.FloatKindFloat:
			return "f32"
		}
		return "f64"
	case *types.IntType:
		return fmt.Sprintf("i%d", t.BitSize)
	}
	panic(fmt.Sprintf("BUG: no intrinsic on %v", t))
}

// lanes is the number of lanes of a value's type and their element type.
func lanes(t types.Type) (int, types.Type) {
	if v, ok := t.(*types.VectorType); ok {
		return int(v.Len), v.ElemType
	}
	return 1, t
}

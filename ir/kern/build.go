package kern

import (
	"fmt"
	"math"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
)

// The builders make typed expressions. They are called by lowering with operands
// that it has typed itself, so operands that do not fit are a bug and panic.
// Integer arithmetic on constants, and with the neutral elements 0 and 1, is
// folded; floating-point arithmetic never is.

// Builder collects the parameters of a kernel.
type Builder struct{ K *Kernel }

// NewBuilder starts a kernel of the given number of tiles; K.Tile is its index.
func NewBuilder(name string, tiles int64) *Builder {
	return &Builder{K: &Kernel{Name: name, Tiles: tiles, Tile: NewVar("tile", dtype.I64)}}
}

// In adds a parameter that is only read, of n elements.
func (b *Builder) In(name string, t dtype.Type, n int64) Buf { return b.param(name, t, n, false) }

// Out adds a parameter that is written (and maybe read).
func (b *Builder) Out(name string, t dtype.Type, n int64) Buf { return b.param(name, t, n, true) }

func (b *Builder) param(name string, t dtype.Type, n int64, writes bool) Buf {
	b.K.Params = append(b.K.Params, Param{Name: name, DType: t, Len: n, Writes: writes})
	return Buf{Param: len(b.K.Params) - 1, DType: t}
}

// TileIndex is the tile's index as an expression.
func (b *Builder) TileIndex() *Expr { return Get(b.K.Tile) }

// Do appends statements to the kernel's body.
func (b *Builder) Do(stmts ...Stmt) { b.K.Body = append(b.K.Body, stmts...) }

// Buf is a parameter as builders use it.
type Buf struct {
	Param int
	DType dtype.Type
}

// At loads element i (i64).
func (b Buf) At(i *Expr) *Expr {
	want(i, "index", dtype.I64)
	return &Expr{Op: OpLoad, DType: b.DType, Param: b.Param, Args: []*Expr{i}}
}

// AtIf loads element i where cond holds; elsewhere memory is not read and the
// value is other.
func (b Buf) AtIf(i, cond, other *Expr) *Expr {
	want(i, "index", dtype.I64)
	want(cond, "condition", dtype.Bool)
	want(other, "value where not loaded", b.DType)
	return &Expr{Op: OpLoad, DType: b.DType, Param: b.Param, Args: []*Expr{i, cond, other}}
}

// Set stores v to element i.
func (b Buf) Set(i, v *Expr) *Store {
	want(i, "index", dtype.I64)
	want(v, "stored value", b.DType)
	return &Store{Param: b.Param, Index: i, Value: v}
}

// SetIf stores v to element i where cond holds.
func (b Buf) SetIf(i, v, cond *Expr) *Store {
	want(cond, "condition", dtype.Bool)
	s := b.Set(i, v)
	s.Cond = cond
	return s
}

// NewVar makes a variable.
func NewVar(name string, t dtype.Type) *Var { return &Var{Name: name, DType: t} }

// NewLocal makes a scratch array of n elements.
func NewLocal(name string, t dtype.Type, n int64) *Local { return &Local{Name: name, DType: t, Len: n} }

// At loads element i (i64).
func (l *Local) At(i *Expr) *Expr {
	want(i, "index", dtype.I64)
	return &Expr{Op: OpLocal, DType: l.DType, Local: l, Args: []*Expr{i}}
}

// Set stores v to element i.
func (l *Local) Set(i, v *Expr) *StoreLocal {
	want(i, "index", dtype.I64)
	want(v, "stored value", l.DType)
	return &StoreLocal{Local: l, Index: i, Value: v}
}

// SetIf stores v to element i where cond holds.
func (l *Local) SetIf(i, v, cond *Expr) *StoreLocal {
	want(cond, "condition", dtype.Bool)
	s := l.Set(i, v)
	s.Cond = cond
	return s
}

// Get reads a variable.
func Get(v *Var) *Expr { return &Expr{Op: OpVar, DType: v.DType, Var: v} }

// Let is the assignment v = x.
func Let(v *Var, x *Expr) *Assign {
	want(x, "assigned value", v.DType)
	return &Assign{Var: v, Value: x}
}

// Bits is the constant of type t with the given raw bits.
func Bits(t dtype.Type, bits uint64) *Expr {
	return &Expr{Op: OpConst, DType: t, Bits: bits & mask(t)}
}

// Bool is a truth constant.
func Bool(x bool) *Expr {
	if x {
		return Bits(dtype.Bool, 1)
	}
	return Bits(dtype.Bool, 0)
}

// I64 is an i64 constant.
func I64(x int64) *Expr { return Bits(dtype.I64, uint64(x)) }

// I32 is an i32 constant.
func I32(x int32) *Expr { return Bits(dtype.I32, uint64(uint32(x))) }

// U32 is a u32 constant.
func U32(x uint32) *Expr { return Bits(dtype.U32, uint64(x)) }

// U64 is a u64 constant.
func U64(x uint64) *Expr { return Bits(dtype.U64, x) }

// F32 is an f32 constant.
func F32(x float32) *Expr { return Bits(dtype.F32, uint64(math.Float32bits(x))) }

// F64 is an f64 constant.
func F64(x float64) *Expr { return Bits(dtype.F64, math.Float64bits(x)) }

// Float is x rounded to the float type t.
func Float(t dtype.Type, x float64) *Expr {
	switch t {
	case dtype.F64:
		return F64(x)
	case dtype.F32:
		return F32(float32(x))
	case dtype.BF16:
		return Bits(t, uint64(scalar.BF16(scalar.Odd32(x))))
	case dtype.F16:
		return Bits(t, uint64(scalar.F16(scalar.Odd32(x))))
	}
	panic(fmt.Sprintf("BUG: float constant of type %v", t))
}

// Int is x, wrapped, as a constant of the integer type t.
func Int(t dtype.Type, x int64) *Expr {
	if !t.IsInt() {
		panic(fmt.Sprintf("BUG: integer constant of type %v", t))
	}
	return Bits(t, uint64(x))
}

// Zero is the zero (+0, false) of t; One its one (true).
func Zero(t dtype.Type) *Expr { return Bits(t, 0) }

// One is the one (true) of t.
func One(t dtype.Type) *Expr {
	switch {
	case t.IsFloat():
		return Float(t, 1)
	case t == dtype.Bool:
		return Bool(true)
	}
	return Int(t, 1)
}

// IsConst reports whether x is a constant, and its bits.
func (x *Expr) IsConst() (bits uint64, ok bool) { return x.Bits, x.Op == OpConst }

// make1 builds an operation and checks it.
func make1(op Op, t dtype.Type, args ...*Expr) *Expr {
	e := &Expr{Op: op, DType: t, Args: args}
	if err := checkOp(e); err != nil {
		panic("BUG: " + err.Error())
	}
	return fold(e)
}

// fold evaluates integer arithmetic on constants and drops neutral elements.
func fold(e *Expr) *Expr {
	if len(e.Args) == 0 || !(e.DType.IsInt() || e.DType == dtype.Bool) || e.Op >= OpPhilox || e.Op == OpBitcast {
		return e
	}
	constant := true
	var bits [4]uint64
	for i, a := range e.Args {
		if a.Op != OpConst || a.DType.IsFloat() {
			constant = false
			break
		}
		bits[i] = a.Bits
	}
	if constant {
		return Bits(e.DType, evalOp(e, bits[:len(e.Args)]))
	}
	if len(e.Args) == 2 {
		a, b := e.Args[0], e.Args[1]
		is := func(x *Expr, v uint64) bool { return x.Op == OpConst && x.Bits == v }
		switch {
		case (e.Op == OpAdd || e.Op == OpOr || e.Op == OpXor) && is(a, 0):
			return b
		case (e.Op == OpAdd || e.Op == OpSub || e.Op == OpOr || e.Op == OpXor || e.Op == OpShl || e.Op == OpShr) && is(b, 0):
			return a
		case e.Op == OpMul && is(a, 1):
			return b
		case (e.Op == OpMul || e.Op == OpDiv) && is(b, 1):
			return a
		case e.Op == OpMul && (is(a, 0) || is(b, 0)):
			return Zero(e.DType)
		case e.Op == OpAnd && e.DType == dtype.Bool && is(a, 1):
			return b
		case e.Op == OpAnd && e.DType == dtype.Bool && is(b, 1):
			return a
		}
	}
	return e
}

func same(op Op, args ...*Expr) *Expr { return make1(op, args[0].DType, args...) }

// The operations; see the Op constants for what each does.

func Neg(x *Expr) *Expr            { return same(OpNeg, x) }
func Abs(x *Expr) *Expr            { return same(OpAbs, x) }
func Add(x, y *Expr) *Expr         { return same(OpAdd, x, y) }
func Sub(x, y *Expr) *Expr         { return same(OpSub, x, y) }
func Mul(x, y *Expr) *Expr         { return same(OpMul, x, y) }
func Div(x, y *Expr) *Expr         { return same(OpDiv, x, y) }
func Rem(x, y *Expr) *Expr         { return same(OpRem, x, y) }
func Fma(x, y, z *Expr) *Expr      { return same(OpFma, x, y, z) }
func FmaFlush(x, y, z *Expr) *Expr { return same(OpFmaFlush, x, y, z) }
func Sqrt(x *Expr) *Expr           { return same(OpSqrt, x) }
func Floor(x *Expr) *Expr          { return same(OpFloor, x) }
func Ceil(x *Expr) *Expr           { return same(OpCeil, x) }
func Rint(x *Expr) *Expr           { return same(OpRint, x) }
func Trunc(x *Expr) *Expr          { return same(OpTrunc, x) }
func Min(x, y *Expr) *Expr         { return same(OpMin, x, y) }
func Max(x, y *Expr) *Expr         { return same(OpMax, x, y) }
func And(x, y *Expr) *Expr         { return same(OpAnd, x, y) }
func Or(x, y *Expr) *Expr          { return same(OpOr, x, y) }
func Xor(x, y *Expr) *Expr         { return same(OpXor, x, y) }
func Not(x *Expr) *Expr            { return same(OpNot, x) }
func Shl(x, n *Expr) *Expr         { return same(OpShl, x, n) }
func Shr(x, n *Expr) *Expr         { return same(OpShr, x, n) }
func Popcnt(x *Expr) *Expr         { return same(OpPopcnt, x) }
func Clz(x *Expr) *Expr            { return same(OpClz, x) }
func MulHi(x, y *Expr) *Expr       { return same(OpMulHi, x, y) }
func Eq(x, y *Expr) *Expr          { return make1(OpEq, dtype.Bool, x, y) }
func Ne(x, y *Expr) *Expr          { return make1(OpNe, dtype.Bool, x, y) }
func Lt(x, y *Expr) *Expr          { return make1(OpLt, dtype.Bool, x, y) }
func Le(x, y *Expr) *Expr          { return make1(OpLe, dtype.Bool, x, y) }
func Gt(x, y *Expr) *Expr          { return make1(OpGt, dtype.Bool, x, y) }
func Ge(x, y *Expr) *Expr          { return make1(OpGe, dtype.Bool, x, y) }
func Select(c, x, y *Expr) *Expr   { return make1(OpSelect, x.DType, c, x, y) }
func Bitcast(x *Expr, t dtype.Type) *Expr {
	if x.DType == t {
		return x
	}
	return make1(OpBitcast, t, x)
}

// Convert is x as a value of type t; x itself where it has that type.
func Convert(x *Expr, t dtype.Type) *Expr {
	if x.DType == t {
		return x
	}
	return make1(OpConvert, t, x)
}

// Philox is word number word (0 to 3) of Philox4x32-10.
func Philox(word int, ctr [4]*Expr, key [2]*Expr) *Expr {
	e := &Expr{Op: OpPhilox, DType: dtype.U32, Bits: uint64(word),
		Args: []*Expr{ctr[0], ctr[1], ctr[2], ctr[3], key[0], key[1]}}
	if err := checkOp(e); err != nil {
		panic("BUG: " + err.Error())
	}
	return e
}

// KeyWords are the four u32 words of an element of type key.
type KeyWords struct{ SeedLo, SeedHi, Step, Micro *Expr }

// LoadKey reads the words of the key in buf, a parameter of type u32 and length 4
// over the bytes of a key. Assign them to variables outside of strips.
func LoadKey(buf Buf) KeyWords {
	return KeyWords{buf.At(I64(0)), buf.At(I64(1)), buf.At(I64(2)), buf.At(I64(3))}
}

// Random is the random word (u32) of an element of random op number op: block is
// the number of the first 64-element block of the element's row, row ·
// scalar.RowBlocks(cols), and col its column (docs/numerics.md). Where col is the
// strip's variable, plus a uniform multiple of 64 at most, and the rest is
// uniform, a strip computes 16 Philox counters for 64 lanes.
func Random(k KeyWords, op uint32, block, col *Expr) *Expr {
	e := &Expr{Op: OpRandom, DType: dtype.U32, Bits: uint64(op),
		Args: []*Expr{k.SeedLo, k.SeedHi, k.Step, k.Micro, block, col}}
	if err := checkOp(e); err != nil {
		panic("BUG: " + err.Error())
	}
	return e
}

// Uniform maps random words (u32) to [0, 1): the upper 24 bits as f32.
func Uniform(u *Expr) *Expr {
	return Mul(Convert(Bitcast(Shr(u, U32(8)), dtype.I32), dtype.F32), F32(0x1p-24))
}

// Kept tells the elements that dropout with probability p keeps.
func Kept(u *Expr, p float64) *Expr {
	below := scalar.DropBelow(p)
	if below > math.MaxUint32 {
		return Bool(false)
	}
	return Ge(u, U32(uint32(below)))
}

// Chain joins xs from the left with op: op(op(x0, x1), x2) …
func Chain(op func(x, y *Expr) *Expr, xs ...*Expr) *Expr {
	acc := xs[0]
	for _, x := range xs[1:] {
		acc = op(acc, x)
	}
	return acc
}

// Range is the loop over v = 0 … n-1.
func Range(v *Var, n *Expr, body ...Stmt) *For {
	return &For{Var: v, Lo: I64(0), Hi: n, Step: 1, Body: body}
}

// Lane is the strip over v = 0 … n-1.
func Lane(v *Var, n *Expr, body ...Stmt) *Strip { return &Strip{Var: v, N: n, Body: body} }

// Reduce adds the reduction v = kind over all lanes of x.
func (s *Strip) Reduce(kind RedKind, v *Var, x *Expr) *Strip {
	want(x, "reduced value", v.DType)
	s.Reds = append(s.Reds, Red{Kind: kind, Var: v, Value: x})
	return s
}

func want(x *Expr, what string, t dtype.Type) {
	if x.DType != t {
		panic(fmt.Sprintf("BUG: %s has type %v, want %v", what, x.DType, t))
	}
}

// mask covers the bits of a value of type t.
func mask(t dtype.Type) uint64 {
	if t == dtype.Bool {
		return 1
	}
	if t.Size() >= 8 {
		return math.MaxUint64
	}
	return 1<<(8*t.Size()) - 1
}

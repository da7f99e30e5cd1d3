// Package kern is the loop-level kernel language: what an op of the IR becomes
// before a back end turns it into LLVM IR for the CPU or into PTX.
//
// A kernel is a body that is run once for each tile 0 … Tiles-1; tiles are cut
// by shape alone and may run in any order on any thread, so no two tiles write
// the same byte. Inside a tile the language is a small structured one: typed
// expressions, mutable variables, serial loops, and strips. A strip is the one
// vector construct: it runs its body for every index of a range, 64 lanes at a
// time, lane l of a block being index 64·b+l. Reductions over a strip keep one
// partial per lane (element i goes to partial i mod 64, in order) and join them
// by a fixed pairwise tree, which is what makes one order of arithmetic hold for
// every vector width (docs/numerics.md).
package kern

import "reprise/ir/dtype"

// Lanes is the number of lanes of a strip and of partials of a reduction. It
// belongs to the numerics, not to a machine.
const Lanes = 64

// Kernel is one loop-level kernel. Two kernels with equal Text are one function.
type Kernel struct {
	Name   string  // a hint for symbol names, e.g. "layernorm"
	Params []Param // pointers, in the order of the launch's arguments
	Tiles  int64   // number of tiles
	Tile   *Var    // i64, the tile's index
	Body   []Stmt
	Flush  bool // floats are computed with by OpFmaFlush and by nothing else
}

// Param is a buffer that the kernel reads or writes, densely packed.
type Param struct {
	Name   string
	DType  dtype.Type
	Len    int64 // elements
	Writes bool
}

// Var is a mutable variable: a loop index, a per-tile scalar or, when it is
// first assigned inside a strip, one value per lane.
type Var struct {
	Name  string
	DType dtype.Type
}

// Local is a per-tile scratch array, undefined at the start of a tile.
type Local struct {
	Name  string
	DType dtype.Type
	Len   int64 // elements
}

// Op names a scalar operation of an expression.
type Op uint8

// Scalar operations. Arithmetic on f16 and bf16 does not exist: lowering widens
// to f32, computes, and rounds (OpConvert) after every op of the IR. Only
// loads, stores, variables, OpSelect, OpConvert and OpBitcast take them. On bool:
// these, the logical operations, OpEq and OpNe. Sign and payload of a NaN are not
// defined, nor is what OpBitcast makes of one.
const (
	OpConst    Op = iota // Bits holds the value's raw bits, zero-extended
	OpVar                // Var
	OpLoad               // Param[Args[0]]; with Args[1] (bool): where false, the value is Args[2] and memory is not read
	OpLocal              // Local[Args[0]]
	OpNeg                // float sign flip, or two's complement
	OpAbs                // float sign clear, or integer absolute value
	OpAdd                // float or wrapping integer
	OpSub                //
	OpMul                //
	OpDiv                // IEEE division; integers truncate, x/0 = -1 (all ones), MinInt/-1 = MinInt
	OpRem                // integers only: x - trunc(x/y)·y, x rem 0 = x
	OpFma                // floats only: one rounding
	OpFmaFlush           // f32: OpFma with denormal operands and results taken as zero; in kernels with Flush
	OpSqrt               // IEEE
	OpFloor              //
	OpCeil               //
	OpRint               // to nearest, ties to even
	OpTrunc              //
	OpMin                // floats: a if a < b or a is NaN, else b ; integers
	OpMax                // floats: a if a > b or a is NaN, else b ; integers
	OpAnd                // integers and bool
	OpOr                 //
	OpXor                //
	OpNot                //
	OpShl                // shift ≥ width gives 0
	OpShr                // logical for unsigned, arithmetic for signed; shift ≥ width gives 0 or the sign
	OpPopcnt             //
	OpClz                // width for 0
	OpMulHi              // u32, u64: upper half of the product
	OpEq                 // comparisons give bool; with NaN false but for OpNe
	OpNe                 //
	OpLt                 //
	OpLe                 //
	OpGt                 //
	OpGe                 //
	OpSelect             // Args[0] bool ? Args[1] : Args[2]; both are evaluated
	OpConvert            // value conversion to DType: nearest-even for floats (an integer becomes f16 or bf16 by way of f32); float→int truncates, saturates, NaN→0; int→int wraps; →bool is x != 0
	OpBitcast            // same width
	OpPhilox             // u32: word (Bits) of Philox4x32-10; Args: c0 c1 c2 c3 k0 k1, all u32
	OpRandom             // u32: an element's word of the random op with id Bits; Args: seed lo, seed hi, step, micro (u32), block, col (i64); scalar.Random
	numOps
)

// Expr is an immutable typed expression. Sharing a pointer shares the value:
// within one statement a shared expression is computed once.
type Expr struct {
	Op    Op
	DType dtype.Type
	Bits  uint64
	Var   *Var
	Param int // OpLoad: index into Kernel.Params
	Local *Local
	Args  []*Expr
}

// Stmt is a statement.
type Stmt interface{ stmt() }

// Assign sets Var.
type Assign struct {
	Var   *Var
	Value *Expr
}

// Store writes Param[Index] = Value where Cond (nil: always) holds.
type Store struct {
	Param int
	Index *Expr
	Value *Expr
	Cond  *Expr
}

// StoreLocal writes Local[Index] = Value.
type StoreLocal struct {
	Local *Local
	Index *Expr
	Value *Expr
	Cond  *Expr
}

// For runs Body with Var (i64) = Lo, Lo+Step, … < Hi. Step > 0. Inside a strip the
// bounds must be the same for all lanes.
type For struct {
	Var    *Var
	Lo, Hi *Expr
	Step   int64
	Body   []Stmt
}

// While evaluates Pre, then runs Body as long as Cond holds. Not inside a strip.
type While struct {
	Pre  []Stmt
	Cond *Expr
	Body []Stmt
}

// If runs Then or Else. Not inside a strip (use OpSelect and Cond there).
type If struct {
	Cond       *Expr
	Then, Else []Stmt
}

// RedKind is the operation of a reduction over a strip.
type RedKind uint8

// Reduction kinds. Partials of RedSum start at +0, of RedProd at 1, of RedMax and
// RedMin at the type's least and greatest value (−inf and +inf), RedAnd at all
// ones, RedOr and RedXor at 0; each element is joined as partial = op(partial, element).
// The tree joins p[i] = op(p[i], p[i+s]) for s = 32, 16, 8, 4, 2, 1.
const (
	RedSum RedKind = iota
	RedProd
	RedMax
	RedMin
	RedAnd
	RedOr
	RedXor
)

// Red is one reduction over a strip: after the strip, Var (a per-tile scalar,
// not one per lane) holds the join of Value over all lanes and blocks.
type Red struct {
	Kind  RedKind
	Var   *Var
	Value *Expr // evaluated at the end of the body, per lane
}

// Strip runs Body for Var (i64) = 0 … N-1 in blocks of Lanes, then evaluates Reds.
// Stores of different lanes never overlap, and a lane never reads through Param
// what another lane of the same strip writes. Body may hold Assign (to variables that
// are first assigned in this strip), Store, StoreLocal and For.
type Strip struct {
	Var  *Var
	N    *Expr // i64, the same for all lanes
	Body []Stmt
	Reds []Red
}

func (*Assign) stmt()     {}
func (*Store) stmt()      {}
func (*StoreLocal) stmt() {}
func (*For) stmt()        {}
func (*While) stmt()      {}
func (*If) stmt()         {}
func (*Strip) stmt()      {}

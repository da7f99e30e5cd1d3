package ops

// Elementwise ops: each result element is a function of the operands' elements at the
// same index. All operands have one shape; broadcasting is an op of its own.

import (
	"fmt"
	"math"
	"math/bits"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

// class is a set of element types that an op takes.
type class uint8

const (
	floats class = 1 << iota
	signed
	unsigned
	boolean
	anyInt  = signed | unsigned
	numbers = floats | anyInt
	logic   = anyInt | boolean
	plain   = numbers | boolean
)

func (c class) has(d dtype.Type) bool {
	return c&floats != 0 && d.IsFloat() || c&signed != 0 && d.IsSigned() || c&unsigned != 0 && d.IsUnsigned() || c&boolean != 0 && d == dtype.Bool
}

func (c class) String() string {
	s := ""
	for _, p := range []struct {
		c    class
		name string
	}{{floats, "float"}, {signed, "signed integer"}, {unsigned, "unsigned integer"}, {boolean, "bool"}} {
		if c&p.c != 0 {
			if s != "" {
				s += " or "
			}
			s += p.name
		}
	}
	return s
}

func wantClass(op *ir.Op, i int, c class) error {
	if !c.has(op.In(i).DType) {
		return fmt.Errorf("operand %s is %v: want %v elements", operandName(op, i), op.In(i), c)
	}
	return nil
}

// mapFn is an elementwise function in all its forms. f16 and bf16 go through f32.
type mapFn struct {
	f32  func(x []float32) float32
	f64  func(x []float64) float64
	int  func(d dtype.Type, x []int64) int64 // bool too; the result is wrapped
	body func(x []*kern.Expr) *kern.Expr
}

// ref runs f over operands of one type into an element type of the same kind.
func (f mapFn) ref(in []*tensor.Tensor) *tensor.Tensor {
	d, shape, n := in[0].DType, in[0].Shape, in[0].Len()
	switch {
	case d == dtype.F64:
		args, out := make([]float64, len(in)), make([]float64, n)
		for i := range out {
			for k := range in {
				args[k] = in[k].F64()[i]
			}
			out[i] = f.f64(args)
		}
		return makeF64(shape, out)
	case d.IsFloat():
		xs, args, out := make([][]float32, len(in)), make([]float32, len(in)), make([]float32, n)
		for k := range in {
			xs[k] = readF32(in[k])
		}
		for i := range out {
			for k := range in {
				args[k] = xs[k][i]
			}
			out[i] = f.f32(args)
		}
		return makeF32(d, shape, out)
	}
	xs, args, out := make([][]int64, len(in)), make([]int64, len(in)), make([]int64, n)
	for k := range in {
		xs[k] = readInts(in[k])
	}
	for i := range out {
		for k := range in {
			args[k] = xs[k][i]
		}
		out[i] = f.int(d, args)
	}
	return makeInts(d, shape, out)
}

// elemwise is a row whose operands and result have one type.
type elemwise struct {
	name, doc string
	operands  []string
	class     class
	fn        mapFn
	flops     int64 // per element; 0 counts 1
	// vjp gives the operands' cotangents from dy; nil with zero: the derivative is zero.
	vjp  func(b *ir.Builder, x []*ir.Value, y, dy *ir.Value) []*ir.Value
	zero bool
}

// elemwiseRow makes the row of an elementwise op.
func elemwiseRow(e elemwise) *ir.OpDef {
	d := &ir.OpDef{
		Name: e.name, Family: "elementwise", Doc: e.doc,
		Operands: e.operands, Results: []string{"y"},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := wantClass(op, 0, e.class); err != nil {
				return nil, err
			}
			for i := range op.Operands {
				if err := wantSame(op, 0, i); err != nil {
					return nil, err
				}
			}
			return oneType(op.In(0))
		},
		Constraints: []ir.Constraint{
			{Label: "C1", Text: "all operands have one type, and so has the result", Check: func(op *ir.Op) error {
				for i := range op.Operands {
					if err := wantSame(op, 0, i); err != nil {
						return err
					}
				}
				return nil
			}},
			{Label: "C2", Text: "elements are " + e.class.String(), Check: func(op *ir.Op) error { return wantClass(op, 0, e.class) }},
		},
		Cost: flopsPerElement(max(1, e.flops)),
		Ref: func(_ ir.Eval, _ *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(e.fn.ref(in))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			args := make([]*kern.Expr, len(op.Operands))
			for i := range args {
				args[i] = c.Arg(i, idx...)
			}
			return []*kern.Expr{c.Round(e.fn.body(args), op.Out(0).DType)}
		},
	}
	switch {
	case e.vjp != nil:
		d.VJP = func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.Out(0).DType.IsFloat() {
				return make([]*ir.Value, len(op.Operands)), nil
			}
			return e.vjp(b, op.Operands, op.Results[0], douts[0]), nil
		}
	case e.zero:
		d.NoGrad, d.NoGradZero = "piecewise constant: the derivative is zero almost everywhere", true
	default:
		d.NoGrad, d.NoGradZero = "discrete: integers and truth values have no derivative", true
	}
	return d
}

// flopsPerElement counts n operations for each result element, and the traffic of all
// operands and results.
func flopsPerElement(n int64) func(op *ir.Op) ir.Cost {
	return func(op *ir.Op) ir.Cost {
		c := trafficOf(op)
		c.Flops = n * op.Out(0).Len()
		return c
	}
}

// trafficOf counts the bytes of all operands and results, and no operations.
func trafficOf(op *ir.Op) ir.Cost {
	c := ir.Cost{}
	for _, v := range op.Operands {
		c.Bytes += v.Type.Bytes()
	}
	for _, v := range op.Results {
		c.Bytes += v.Type.Bytes()
	}
	return c
}

type unaryVJP func(b *ir.Builder, x, y, dy *ir.Value) *ir.Value

// unary makes a row of one operand.
func unary(name, doc string, c class, flops int64, fn mapFn, vjp unaryVJP) *ir.OpDef {
	e := elemwise{name: name, doc: doc, operands: []string{"x"}, class: c, fn: fn, flops: flops}
	if vjp != nil {
		e.vjp = func(b *ir.Builder, x []*ir.Value, y, dy *ir.Value) []*ir.Value {
			return []*ir.Value{vjp(b, x[0], y, dy)}
		}
	}
	return elemwiseRow(e)
}

// step makes a unary row whose derivative is zero almost everywhere.
func step(name, doc string, c class, fn mapFn) *ir.OpDef {
	return elemwiseRow(elemwise{name: name, doc: doc, operands: []string{"x"}, class: c, fn: fn, zero: true})
}

// binaryRow makes a row of two operands.
func binaryRow(name, doc string, c class, flops int64, fn mapFn, vjp func(b *ir.Builder, x, z, y, dy *ir.Value) (dx, dz *ir.Value)) *ir.OpDef {
	e := elemwise{name: name, doc: doc, operands: []string{"a", "b"}, class: c, fn: fn, flops: flops}
	if vjp != nil {
		e.vjp = func(b *ir.Builder, x []*ir.Value, y, dy *ir.Value) []*ir.Value {
			da, db := vjp(b, x[0], x[1], y, dy)
			return []*ir.Value{da, db}
		}
	}
	return elemwiseRow(e)
}

// fn1 makes the forms of a unary function of floats.
func fn1(f32 func(float32) float32, f64 func(float64) float64, body func(x *kern.Expr) *kern.Expr) mapFn {
	return mapFn{
		f32:  func(x []float32) float32 { return f32(x[0]) },
		f64:  func(x []float64) float64 { return f64(x[0]) },
		body: func(x []*kern.Expr) *kern.Expr { return body(x[0]) },
	}
}

// via64 makes the forms of a unary function that is exact, so that float64 may compute it
// for float32 too.
func via64(f64 func(float64) float64, body func(x *kern.Expr) *kern.Expr) mapFn {
	return fn1(func(x float32) float32 { return float32(f64(float64(x))) }, f64, body)
}

// withInt adds the integer form.
func (f mapFn) withInt(g func(d dtype.Type, x []int64) int64) mapFn {
	f.int = g
	return f
}

// fn2 makes the forms of a binary function of floats.
func fn2(f32 func(a, b float32) float32, f64 func(a, b float64) float64, body func(a, b *kern.Expr) *kern.Expr) mapFn {
	return mapFn{
		f32:  func(x []float32) float32 { return f32(x[0], x[1]) },
		f64:  func(x []float64) float64 { return f64(x[0], x[1]) },
		body: func(x []*kern.Expr) *kern.Expr { return body(x[0], x[1]) },
	}
}

// intFn2 makes the forms of a binary function of integers and bools.
func intFn2(g func(d dtype.Type, a, b int64) int64, body func(a, b *kern.Expr) *kern.Expr) mapFn {
	return mapFn{
		int:  func(d dtype.Type, x []int64) int64 { return g(d, x[0], x[1]) },
		body: func(x []*kern.Expr) *kern.Expr { return body(x[0], x[1]) },
	}
}

// lit is the number v in x's element type.
func lit(x *kern.Expr, v float64) *kern.Expr {
	if x.DType.IsFloat() {
		return kern.Float(x.DType, v)
	}
	return kern.Int(x.DType, int64(v))
}

// unsignedOf is the unsigned integer type of d's width.
func unsignedOf(d dtype.Type) dtype.Type {
	if d.IsSigned() {
		return d - dtype.I8 + dtype.U8
	}
	return d
}

// truncU is the low bits of a pattern, as many as d has.
func truncU(d dtype.Type, x int64) uint64 {
	if d == dtype.Bool {
		return uint64(x) & 1
	}
	if d.Size() == 8 {
		return uint64(x)
	}
	return uint64(x) & (1<<(8*d.Size()) - 1)
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// less orders two integers or bools of type d given as extended patterns.
func less(d dtype.Type, a, b int64) bool {
	if d.IsSigned() {
		return a < b
	}
	return uint64(a) < uint64(b)
}

func sign64(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x // ±0 and NaN
}

func max32(a, b float32) float32 {
	if a > b || a != a {
		return a
	}
	return b
}

func max64(a, b float64) float64 {
	if a > b || a != a {
		return a
	}
	return b
}

func min32(a, b float32) float32 {
	if a < b || a != a {
		return a
	}
	return b
}

func min64(a, b float64) float64 {
	if a < b || a != a {
		return a
	}
	return b
}

// intDiv is truncating division: x/0 is all ones, MinInt/-1 is MinInt.
func intDiv(d dtype.Type, a, b int64) int64 {
	switch {
	case truncU(d, b) == 0:
		return -1
	case !d.IsSigned():
		return int64(truncU(d, a) / truncU(d, b))
	case b == -1:
		return -a
	}
	return a / b
}

// intRem is a - intDiv(a, b)·b; a rem 0 is a.
func intRem(d dtype.Type, a, b int64) int64 {
	switch {
	case truncU(d, b) == 0:
		return a
	case !d.IsSigned():
		return int64(truncU(d, a) % truncU(d, b))
	case b == -1:
		return 0
	}
	return a % b
}

// intPow is a to the power b by repeated squaring, wrapping; for b < 0 it is 0, but 1
// for a = 1, and ±1 for a = -1.
func intPow(d dtype.Type, a, b int64) int64 {
	if d.IsSigned() && b < 0 {
		switch a {
		case 1:
			return 1
		case -1:
			return 1 - 2*(b&1)
		}
		return 0
	}
	r := int64(1)
	for n := truncU(d, b); n > 0; n >>= 1 {
		if n&1 == 1 {
			r *= a
		}
		a *= a
	}
	return r
}

// roundAFZ rounds to the nearest integer, ties away from zero.
func roundAFZ(x *kern.Expr) *kern.Expr {
	t := kern.Trunc(x)
	away := kern.Ge(kern.Abs(kern.Sub(x, t)), lit(x, 0.5))
	return kern.Select(away, kern.Add(t, kern.Select(kern.Lt(x, lit(x, 0)), lit(x, -1), lit(x, 1))), t)
}

func signExpr(x *kern.Expr) *kern.Expr {
	if x.DType.IsUnsigned() {
		return kern.Select(kern.Ne(x, lit(x, 0)), lit(x, 1), x)
	}
	return kern.Select(kern.Gt(x, lit(x, 0)), lit(x, 1), kern.Select(kern.Lt(x, lit(x, 0)), lit(x, -1), x))
}

// asUnsigned computes f on the unsigned type of the same width.
func asUnsigned(f func(a, b *kern.Expr) *kern.Expr) func(a, b *kern.Expr) *kern.Expr {
	return func(a, b *kern.Expr) *kern.Expr {
		d := a.DType
		u := unsignedOf(d)
		return kern.Bitcast(f(kern.Bitcast(a, u), kern.Bitcast(b, u)), d)
	}
}

// intPowExpr is intPow, over all bits of the exponent.
func intPowExpr(a, b *kern.Expr) *kern.Expr {
	d := a.DType
	u := unsignedOf(d)
	r, sq, n := lit(a, 1), a, kern.Bitcast(b, u)
	for i := range int64(8 * d.Size()) {
		bit := kern.And(kern.Shr(n, kern.Int(u, i)), kern.Int(u, 1))
		r = kern.Select(kern.Ne(bit, kern.Int(u, 0)), kern.Mul(r, sq), r)
		sq = kern.Mul(sq, sq)
	}
	if !d.IsSigned() {
		return r
	}
	odd := kern.Ne(kern.And(b, lit(b, 1)), lit(b, 0))
	negative := kern.Select(kern.Eq(a, lit(a, 1)), lit(a, 1),
		kern.Select(kern.Eq(a, lit(a, -1)), kern.Select(odd, lit(a, -1), lit(a, 1)), lit(a, 0)))
	return kern.Select(kern.Lt(b, lit(b, 0)), negative, r)
}

func elementwiseOps() []*ir.OpDef {
	var rows []*ir.OpDef
	rows = append(rows, signRows()...)
	rows = append(rows, roundingRows()...)
	rows = append(rows, functionRows()...)
	rows = append(rows, bitRows()...)
	rows = append(rows, arithmeticRows()...)
	rows = append(rows, compareRow(), selectRow(), clampRow(), convertRow(), bitcastRow(), isFiniteRow(), fmaRow())
	return rows
}

func signRows() []*ir.OpDef {
	return []*ir.OpDef{
		unary("neg", "`-x`: the sign flipped; integers wrap.", numbers, 1,
			fn1(func(x float32) float32 { return -x }, func(x float64) float64 { return -x }, kern.Neg).
				withInt(func(_ dtype.Type, x []int64) int64 { return -x[0] }),
			func(b *ir.Builder, _, _, dy *ir.Value) *ir.Value { return neg(b, dy) }),
		unary("abs", "`|x|`: the sign cleared; the least integer stays itself.", numbers, 1,
			via64(math.Abs, absExpr).withInt(func(d dtype.Type, x []int64) int64 {
				if d.IsSigned() && x[0] < 0 {
					return -x[0]
				}
				return x[0]
			}),
			func(b *ir.Builder, x, _, dy *ir.Value) *ir.Value { return mul(b, dy, call1(b, "sign", x)) }),
		step("sign", "1 for x > 0, -1 for x < 0, else x itself (±0, NaN).", numbers,
			via64(sign64, signExpr).withInt(func(d dtype.Type, x []int64) int64 {
				return b2i(less(d, 0, x[0])) - b2i(less(d, x[0], 0))
			})),
	}
}

func absExpr(x *kern.Expr) *kern.Expr {
	if x.DType.IsUnsigned() {
		return x
	}
	return kern.Abs(x)
}

func roundingRows() []*ir.OpDef {
	return []*ir.OpDef{
		step("floor", "The greatest integer not above x.", floats, via64(math.Floor, kern.Floor)),
		step("ceil", "The least integer not below x.", floats, via64(math.Ceil, kern.Ceil)),
		step("trunc", "x without its fraction.", floats, via64(math.Trunc, kern.Trunc)),
		step("round_even", "The nearest integer, ties to even.", floats, via64(math.RoundToEven, kern.Rint)),
		step("round_afz", "The nearest integer, ties away from zero.", floats, via64(math.Round, roundAFZ)),
	}
}

func bitRows() []*ir.OpDef {
	return []*ir.OpDef{
		unary("not", "Bitwise complement; of bool, negation.", logic, 1, mapFn{
			int: func(d dtype.Type, x []int64) int64 {
				if d == dtype.Bool {
					return 1 - x[0]
				}
				return ^x[0]
			},
			body: func(x []*kern.Expr) *kern.Expr { return kern.Not(x[0]) },
		}, nil),
		unary("popcnt", "The number of one bits.", anyInt, 1, mapFn{
			int:  func(d dtype.Type, x []int64) int64 { return int64(bits.OnesCount64(truncU(d, x[0]))) },
			body: func(x []*kern.Expr) *kern.Expr { return kern.Popcnt(x[0]) },
		}, nil),
		unary("clz", "The number of leading zero bits; the width for 0.", anyInt, 1, mapFn{
			int: func(d dtype.Type, x []int64) int64 {
				return int64(bits.LeadingZeros64(truncU(d, x[0]))) - 64 + 8*d.Size()
			},
			body: func(x []*kern.Expr) *kern.Expr { return kern.Clz(x[0]) },
		}, nil),
		binaryRow("and", "Bitwise and.", logic, 1, intFn2(func(_ dtype.Type, a, b int64) int64 { return a & b }, kern.And), nil),
		binaryRow("or", "Bitwise or.", logic, 1, intFn2(func(_ dtype.Type, a, b int64) int64 { return a | b }, kern.Or), nil),
		binaryRow("xor", "Bitwise exclusive or.", logic, 1, intFn2(func(_ dtype.Type, a, b int64) int64 { return a ^ b }, kern.Xor), nil),
		binaryRow("shl", "a shifted left by b; 0 where b, taken as unsigned, is the width or more.", anyInt, 1,
			intFn2(func(d dtype.Type, a, b int64) int64 {
				if truncU(d, b) >= uint64(8*d.Size()) {
					return 0
				}
				return a << uint(truncU(d, b))
			}, asUnsigned(kern.Shl)), nil),
		binaryRow("shr_logical", "a shifted right by b, zeros coming in; 0 where b, taken as unsigned, is the width or more.", anyInt, 1,
			intFn2(func(d dtype.Type, a, b int64) int64 {
				if truncU(d, b) >= uint64(8*d.Size()) {
					return 0
				}
				return int64(truncU(d, a) >> truncU(d, b))
			}, asUnsigned(kern.Shr)), nil),
		binaryRow("shr_arith", "a shifted right by b, copies of its top bit coming in, for unsigned types too; all copies where b, taken as unsigned, is the width or more.", anyInt, 1,
			intFn2(func(d dtype.Type, a, b int64) int64 {
				top := extend(unsignedSigned(d), truncU(d, a))
				return top >> min(truncU(d, b), 63)
			}, shrArithExpr), nil),
	}
}

// unsignedSigned is the signed integer type of d's width.
func unsignedSigned(d dtype.Type) dtype.Type {
	if d.IsUnsigned() {
		return d - dtype.U8 + dtype.I8
	}
	return d
}

func shrArithExpr(a, b *kern.Expr) *kern.Expr {
	d := a.DType
	s, u := unsignedSigned(d), unsignedOf(d)
	last := kern.Int(u, 8*d.Size()-1)
	n := kern.Min(kern.Bitcast(b, u), last)
	return kern.Bitcast(kern.Shr(kern.Bitcast(a, s), kern.Bitcast(n, s)), d)
}

func arithmeticRows() []*ir.OpDef {
	return []*ir.OpDef{
		binaryRow("add", "`a + b`; integers wrap.", numbers, 1,
			fn2(func(a, b float32) float32 { return a + b }, func(a, b float64) float64 { return a + b }, kern.Add).
				withInt(func(_ dtype.Type, x []int64) int64 { return x[0] + x[1] }),
			func(b *ir.Builder, _, _, _, dy *ir.Value) (*ir.Value, *ir.Value) { return dy, dy }),
		binaryRow("sub", "`a - b`; integers wrap.", numbers, 1,
			fn2(func(a, b float32) float32 { return a - b }, func(a, b float64) float64 { return a - b }, kern.Sub).
				withInt(func(_ dtype.Type, x []int64) int64 { return x[0] - x[1] }),
			func(b *ir.Builder, _, _, _, dy *ir.Value) (*ir.Value, *ir.Value) { return dy, neg(b, dy) }),
		binaryRow("mul", "`a · b`; integers wrap.", numbers, 1,
			fn2(func(a, b float32) float32 { return a * b }, func(a, b float64) float64 { return a * b }, kern.Mul).
				withInt(func(_ dtype.Type, x []int64) int64 { return x[0] * x[1] }),
			func(b *ir.Builder, x, z, _, dy *ir.Value) (*ir.Value, *ir.Value) { return mul(b, dy, z), mul(b, dy, x) }),
		binaryRow("div", "`a / b`: IEEE division; integers truncate, a/0 is all ones, MinInt/-1 is MinInt.", numbers, 4,
			fn2(func(a, b float32) float32 { return a / b }, func(a, b float64) float64 { return a / b }, kern.Div).
				withInt(func(d dtype.Type, x []int64) int64 { return intDiv(d, x[0], x[1]) }),
			func(b *ir.Builder, _, z, y, dy *ir.Value) (*ir.Value, *ir.Value) {
				da := div(b, dy, z)
				return da, neg(b, mul(b, da, y))
			}),
		binaryRow("rem", "The remainder of truncating division, with the sign of a: exact for floats (C's fmod; NaN for b = 0); for integers a rem 0 is a.", numbers, 40,
			fn2(rem32, math.Mod, remExpr).
				withInt(func(d dtype.Type, x []int64) int64 { return intRem(d, x[0], x[1]) }),
			func(b *ir.Builder, x, z, _, dy *ir.Value) (*ir.Value, *ir.Value) {
				return dy, neg(b, mul(b, dy, call1(b, "trunc", div(b, x, z))))
			}),
		binaryRow("pow", "a to the power b (floats: C's pow; integers by repeated squaring, wrapping, negative exponents giving 0 unless a is ±1).", numbers, 40,
			fn2(scalar.Pow32, scalar.Pow64, powExpr).
				withInt(func(d dtype.Type, x []int64) int64 { return intPow(d, x[0], x[1]) }), powVJP),
		binaryRow("max", "a where a > b or a is NaN, else b. The derivative is shared equally at a tie.", plain, 1,
			fn2(max32, max64, boolMax).withInt(func(d dtype.Type, x []int64) int64 {
				if less(d, x[1], x[0]) {
					return x[0]
				}
				return x[1]
			}), extremeVJP("gt")),
		binaryRow("min", "a where a < b or a is NaN, else b. The derivative is shared equally at a tie.", plain, 1,
			fn2(min32, min64, boolMin).withInt(func(d dtype.Type, x []int64) int64 {
				if less(d, x[0], x[1]) {
					return x[0]
				}
				return x[1]
			}), extremeVJP("lt")),
		binaryRow("atan2", "The angle of the point (b, a), in (-π, π].", floats, 30,
			fn2(scalar.Atan2_32, scalar.Atan2_64, kern.Atan2),
			func(b *ir.Builder, x, z, _, dy *ir.Value) (*ir.Value, *ir.Value) {
				t := div(b, dy, add(b, mul(b, x, x), mul(b, z, z)))
				return mul(b, t, z), neg(b, mul(b, t, x))
			}),
	}
}

func boolMax(a, b *kern.Expr) *kern.Expr {
	if a.DType == dtype.Bool {
		return kern.Or(a, b)
	}
	return kern.Max(a, b)
}

func boolMin(a, b *kern.Expr) *kern.Expr {
	if a.DType == dtype.Bool {
		return kern.And(a, b)
	}
	return kern.Min(a, b)
}

// extremeVJP gives dy to the operand that was taken, the one that compares so to the
// other, and half to each at a tie.
func extremeVJP(dir string) func(b *ir.Builder, x, z, y, dy *ir.Value) (*ir.Value, *ir.Value) {
	return func(b *ir.Builder, x, z, _, dy *ir.Value) (*ir.Value, *ir.Value) {
		zero, half, tie := full(b, dy.Type, 0), times(b, dy, 0.5), compare(b, "eq", x, z)
		share := func(p, q *ir.Value) *ir.Value {
			return choose(b, compare(b, dir, p, q), dy, choose(b, tie, half, zero))
		}
		return share(x, z), share(z, x)
	}
}

// powVJP: da = dy·b·a^(b-1), 0 where b = 0; db = dy·y·log a, 0 where a = 0 ≤ b.
func powVJP(b *ir.Builder, x, z, y, dy *ir.Value) (*ir.Value, *ir.Value) {
	zero := full(b, dy.Type, 0)
	da := mul(b, dy, mul(b, z, call2(b, "pow", x, plus(b, z, -1))))
	da = choose(b, compare(b, "eq", z, zero), zero, da)
	db := mul(b, dy, mul(b, y, call1(b, "log", x)))
	flat := call2(b, "and", compare(b, "eq", x, zero), compare(b, "ge", z, zero))
	return da, choose(b, flat, zero, db)
}

func powExpr(a, b *kern.Expr) *kern.Expr {
	if a.DType.IsFloat() {
		return kern.Pow(a, b)
	}
	return intPowExpr(a, b)
}

func rem32(a, b float32) float32 { return float32(math.Mod(float64(a), float64(b))) }

func compareRow() *ir.OpDef {
	dirs := []string{"eq", "ne", "lt", "le", "gt", "ge"}
	holds := func(dir string, lt, eq, unordered bool) bool {
		switch dir {
		case "eq":
			return eq
		case "ne":
			return !eq
		case "lt":
			return lt
		case "le":
			return lt || eq
		case "gt":
			return !lt && !eq && !unordered
		}
		return !lt && !unordered
	}
	valid := func(op *ir.Op) error {
		for _, d := range dirs {
			if op.Attrs.Str("dir") == d {
				return nil
			}
		}
		return fmt.Errorf("dir is %q, want one of %v", op.Attrs.Str("dir"), dirs)
	}
	return &ir.OpDef{
		Name: "compare", Family: "elementwise",
		Doc:      "`a dir b` for dir in eq, ne, lt, le, gt, ge; with NaN false, but for ne. false < true.",
		Operands: []string{"a", "b"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "dir", Kind: "string", Doc: "eq, ne, lt, le, gt or ge"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := wantClass(op, 0, plain); err != nil {
				return nil, err
			}
			if err := wantSame(op, 0, 1); err != nil {
				return nil, err
			}
			return oneType(op.In(0).With(dtype.Bool))
		},
		Constraints: []ir.Constraint{
			{Label: "C1", Text: "operands have one type", Check: func(op *ir.Op) error { return wantSame(op, 0, 1) }},
			{Label: "C2", Text: "dir is a comparison", Check: valid},
		},
		NoGrad: "a comparison is discrete", NoGradZero: true,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dir, d := op.Attrs.Str("dir"), in[0].DType
			out := make([]int64, in[0].Len())
			switch {
			case d == dtype.F64:
				for i, a := range in[0].F64() {
					b := in[1].F64()[i]
					out[i] = b2i(holds(dir, a < b, a == b, a != a || b != b))
				}
			case d.IsFloat():
				y := readF32(in[1])
				for i, a := range readF32(in[0]) {
					b := y[i]
					out[i] = b2i(holds(dir, a < b, a == b, a != a || b != b))
				}
			default:
				y := readInts(in[1])
				for i, a := range readInts(in[0]) {
					out[i] = b2i(holds(dir, less(d, a, y[i]), a == y[i], false))
				}
			}
			return one(makeInts(dtype.Bool, in[0].Shape, out))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			a, b := c.Arg(0, idx...), c.Arg(1, idx...)
			if a.DType == dtype.Bool {
				a, b = kern.Convert(a, dtype.U8), kern.Convert(b, dtype.U8)
			}
			return []*kern.Expr{compareExpr(op.Attrs.Str("dir"), a, b)}
		},
	}
}

func compareExpr(dir string, a, b *kern.Expr) *kern.Expr {
	switch dir {
	case "eq":
		return kern.Eq(a, b)
	case "ne":
		return kern.Ne(a, b)
	case "lt":
		return kern.Lt(a, b)
	case "le":
		return kern.Le(a, b)
	case "gt":
		return kern.Gt(a, b)
	}
	return kern.Ge(a, b)
}

func selectRow() *ir.OpDef {
	check := func(op *ir.Op) error {
		if op.In(0).DType != dtype.Bool || !sameShape(op.In(0).Shape, op.In(1).Shape) {
			return fmt.Errorf("operand 0 (pred) is %v, want %v", op.In(0), op.In(1).With(dtype.Bool))
		}
		return wantSame(op, 1, 2)
	}
	return &ir.OpDef{
		Name: "select", Family: "elementwise",
		Doc:      "a where pred, else b.",
		Operands: []string{"pred", "a", "b"}, Results: []string{"y"},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := check(op); err != nil {
				return nil, err
			}
			return oneType(op.In(1))
		},
		Constraints: []ir.Constraint{{Label: "C1", Text: "a and b have one type, pred is bool of its shape", Check: check}},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.Out(0).DType.IsFloat() {
				return make([]*ir.Value, 3), nil
			}
			dy, zero := douts[0], full(b, douts[0].Type, 0)
			return []*ir.Value{nil, choose(b, op.Operands[0], dy, zero), choose(b, op.Operands[0], zero, dy)}, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			out, w := in[2].Clone(), in[1].DType.Size()
			for i := range in[0].Len() {
				if in[0].Data[i] != 0 {
					copy(out.Data[i*w:(i+1)*w], in[1].Data[i*w:])
				}
			}
			return one(out)
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			return []*kern.Expr{kern.Select(c.Arg(0, idx...), c.Arg(1, idx...), c.Arg(2, idx...))}
		},
	}
}

func clampRow() *ir.OpDef {
	return elemwiseRow(elemwise{
		name: "clamp", doc: "`min(max(x, lo), hi)`. The derivative goes to x where lo ≤ x ≤ hi, else to the bound that was taken.",
		operands: []string{"lo", "x", "hi"}, class: numbers, flops: 2,
		fn: mapFn{
			f32: func(x []float32) float32 { return min32(max32(x[1], x[0]), x[2]) },
			f64: func(x []float64) float64 { return min64(max64(x[1], x[0]), x[2]) },
			int: func(d dtype.Type, x []int64) int64 {
				y := x[1]
				if less(d, y, x[0]) {
					y = x[0]
				}
				if less(d, x[2], y) {
					y = x[2]
				}
				return y
			},
			body: func(x []*kern.Expr) *kern.Expr { return kern.Min(kern.Max(x[1], x[0]), x[2]) },
		},
		vjp: func(b *ir.Builder, x []*ir.Value, y, dy *ir.Value) []*ir.Value {
			zero := full(b, dy.Type, 0)
			high := compare(b, "gt", y, x[1]) // raised to lo (or lo above hi, lowered again)
			low := compare(b, "lt", y, x[1])
			return []*ir.Value{
				choose(b, high, dy, zero),
				choose(b, call2(b, "or", high, low), zero, dy),
				choose(b, low, dy, zero),
			}
		},
	})
}

func fmaRow() *ir.OpDef {
	return elemwiseRow(elemwise{
		name: "fma", doc: "`a·b + c` with one rounding (f16 and bf16: computed in f32, then rounded again).",
		operands: []string{"a", "b", "c"}, class: floats, flops: 2,
		fn: mapFn{
			f32:  func(x []float32) float32 { return scalar.Fma32(x[0], x[1], x[2]) },
			f64:  func(x []float64) float64 { return scalar.Fma64(x[0], x[1], x[2]) },
			body: func(x []*kern.Expr) *kern.Expr { return kern.Fma(x[0], x[1], x[2]) },
		},
		vjp: func(b *ir.Builder, x []*ir.Value, _, dy *ir.Value) []*ir.Value {
			return []*ir.Value{mul(b, dy, x[1]), mul(b, dy, x[0]), dy}
		},
	})
}

func isFiniteRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "is_finite", Family: "elementwise",
		Doc:      "Whether x is neither infinite nor NaN.",
		Operands: []string{"x"}, Results: []string{"y"},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := wantFloat(op, 0); err != nil {
				return nil, err
			}
			return oneType(op.In(0).With(dtype.Bool))
		},
		NoGrad: "a test is discrete", NoGradZero: true,
		Ref: func(_ ir.Eval, _ *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			out := make([]int64, in[0].Len())
			if in[0].DType == dtype.F64 {
				for i, x := range in[0].F64() {
					out[i] = b2i(x-x == 0)
				}
			} else {
				for i, x := range readF32(in[0]) {
					out[i] = b2i(x-x == 0)
				}
			}
			return one(makeInts(dtype.Bool, in[0].Shape, out))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			x := kern.Abs(c.Arg(0, idx...))
			return []*kern.Expr{kern.Lt(x, lit(x, math.Inf(1)))}
		},
	}
}

// ConvertTensor is the semantics of the op convert: floats round to nearest even; float
// to integer truncates, saturates, and takes NaN to 0; integer to integer wraps; to bool
// is x ≠ 0. Integers reach f16 and bf16 by way of f32.
func ConvertTensor(t *tensor.Tensor, to dtype.Type) *tensor.Tensor {
	from, n := t.DType, t.Len()
	switch {
	case from == to:
		return t.Clone()
	case from.IsFloat():
		var xs []float64
		if from == dtype.F64 {
			xs = t.F64()
		} else {
			xs = make([]float64, n)
			for i, x := range readF32(t) {
				xs[i] = float64(x)
			}
		}
		switch {
		case to == dtype.F64:
			return makeF64(t.Shape, xs)
		case to == dtype.F32:
			out := make([]float32, n)
			for i, x := range xs {
				out[i] = float32(x)
			}
			return makeF32(to, t.Shape, out)
		case to.IsFloat():
			out := make([]float32, n)
			for i, x := range xs {
				out[i] = scalar.Odd32(x) // one rounding in effect
			}
			return makeF32(to, t.Shape, out)
		}
		out := make([]int64, n)
		for i, x := range xs {
			out[i] = floatToInt(to, x)
		}
		return makeInts(to, t.Shape, out)
	}
	xs := readInts(t)
	switch {
	case to == dtype.F64:
		out := make([]float64, n)
		for i, x := range xs {
			if out[i] = float64(x); !from.IsSigned() {
				out[i] = float64(uint64(x))
			}
		}
		return makeF64(t.Shape, out)
	case to.IsFloat():
		out := make([]float32, n)
		for i, x := range xs {
			if out[i] = float32(x); !from.IsSigned() {
				out[i] = float32(uint64(x))
			}
		}
		return makeF32(to, t.Shape, out)
	case to == dtype.Bool:
		for i, x := range xs {
			xs[i] = b2i(x != 0)
		}
	}
	return makeInts(to, t.Shape, xs)
}

// floatToInt truncates and saturates; NaN gives 0, but true for bool.
func floatToInt(to dtype.Type, x float64) int64 {
	width := int(8 * to.Size())
	switch {
	case to == dtype.Bool:
		return b2i(x != 0)
	case x != x:
		return 0
	case to.IsSigned():
		lim := math.Ldexp(1, width-1)
		switch {
		case x >= lim:
			return int64(uint64(1)<<(width-1) - 1)
		case x < -lim:
			return -1 << (width - 1)
		}
		return int64(x)
	case x <= 0:
		return 0
	case x >= math.Ldexp(1, width):
		return -1
	}
	if x >= 0x1p63 {
		return int64(uint64(x-0x1p63) + 1<<63)
	}
	return int64(x)
}

func convertRow() *ir.OpDef {
	check := func(op *ir.Op) error {
		if to := op.Attrs.DType("to"); op.In(0).DType == dtype.Key || to == dtype.Key || to == dtype.Invalid {
			return fmt.Errorf("no conversion from %v to %v", op.In(0).DType, to)
		}
		return nil
	}
	return &ir.OpDef{
		Name: "convert", Family: "elementwise",
		Doc: "x as values of another element type: to a float rounds to nearest even (integers reach f16 and bf16 by way of f32); " +
			"float to integer truncates, saturates, and takes NaN to 0; integer to integer wraps; to bool is x ≠ 0.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "to", Kind: "dtype", Doc: "element type of the result"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := check(op); err != nil {
				return nil, err
			}
			return oneType(op.In(0).With(op.Attrs.DType("to")))
		},
		Constraints: []ir.Constraint{{Label: "C1", Text: "neither type is key", Check: check}},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() || !op.Out(0).DType.IsFloat() {
				return []*ir.Value{nil}, nil
			}
			return []*ir.Value{cast(b, douts[0], op.In(0).DType)}, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(ConvertTensor(in[0], op.Attrs.DType("to")))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			x, to := c.Arg(0, idx...), op.Attrs.DType("to")
			switch {
			case to == dtype.F16 || to == dtype.BF16:
				if x.DType == dtype.F64 {
					return []*kern.Expr{kern.Convert(kern.Convert(x, to), dtype.F32)}
				}
				return []*kern.Expr{c.Round(kern.Convert(x, dtype.F32), to)}
			}
			return []*kern.Expr{kern.Convert(x, to)}
		},
	}
}

func bitcastRow() *ir.OpDef {
	check := func(op *ir.Op) error {
		from, to := op.In(0).DType, op.Attrs.DType("to")
		if from == dtype.Key || to == dtype.Key || from == dtype.Bool || to == dtype.Bool || from.Size() != to.Size() {
			return fmt.Errorf("no bitcast from %v to %v: want two numeric types of one width", from, to)
		}
		return nil
	}
	return &ir.OpDef{
		Name: "bitcast", Family: "elementwise",
		Doc:      "The same bits as values of another element type of the same width.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "to", Kind: "dtype", Doc: "element type of the result"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if err := check(op); err != nil {
				return nil, err
			}
			return oneType(op.In(0).With(op.Attrs.DType("to")))
		},
		Constraints: []ir.Constraint{{Label: "C1", Text: "numeric types of one width", Check: check}},
		NoGrad:      "bits have no derivative", NoGradZero: true,
		Cost: trafficOf,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			out := in[0].Clone()
			out.DType = op.Attrs.DType("to")
			return one(out)
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			x, from, to := c.Arg(0, idx...), op.In(0).DType, op.Attrs.DType("to")
			// f16 and bf16 are carried as f32: go through the stored form on either side.
			x = kern.Bitcast(kern.Convert(x, from), to)
			if to == dtype.F16 || to == dtype.BF16 {
				x = kern.Convert(x, dtype.F32)
			}
			return []*kern.Expr{x}
		},
	}
}

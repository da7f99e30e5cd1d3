package nn

import (
	"fmt"
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// Const is a scalar constant: v rounded to d.
func (s *Scope) Const(d dtype.Type, v float64) *Tensor {
	// f16 and bf16 have no host form of their own here: the conversion rounds.
	wide := d
	if d == dtype.F16 || d == dtype.BF16 {
		wide = dtype.F32
	}
	t := tensor.New(wide)
	switch {
	case wide == dtype.F64:
		t.F64()[0] = v
	case wide == dtype.F32:
		t.F32()[0] = float32(v)
	default:
		t.SetBits(0, uint64(int64(v)))
	}
	return s.Cast(s.Op("constant", nil, ir.A("value", t)), d)
}

// Int is a scalar integer constant.
func (s *Scope) Int(d dtype.Type, v int64) *Tensor {
	t := tensor.New(d)
	t.SetBits(0, uint64(v))
	return s.Op("constant", nil, ir.A("value", t))
}

// Array is a constant array.
func (s *Scope) Array(t *tensor.Tensor) *Tensor { return s.Op("constant", nil, ir.A("value", t)) }

// Full is a value of type t, every element v.
func (s *Scope) Full(t ir.Type, v float64) *Tensor {
	return s.BroadcastTo(s.Const(t.DType, v), t.Shape...)
}

// BroadcastTo repeats x along leading and size-one axes, as numpy does.
func (s *Scope) BroadcastTo(x *Tensor, shape ...int64) *Tensor {
	if slices.Equal(x.Type.Shape, shape) {
		return x
	}
	lead := len(shape) - x.Type.Rank()
	dims := make([]int64, x.Type.Rank())
	for i, n := range x.Type.Shape {
		if lead < 0 || n != 1 && n != shape[lead+i] {
			s.fail("shape", "%v can't be broadcast to shape %v", x.Type, shape)
		}
		dims[i] = int64(lead + i)
	}
	return s.Op("broadcast", []*Tensor{x}, ir.A("shape", shape), ir.A("dims", dims))
}

// pair brings two operands to one shape; their element types must be equal.
func (s *Scope) pair(what string, x, y *Tensor) (*Tensor, *Tensor) {
	if x.Type.DType != y.Type.DType {
		s.fail("shape", "%s of %v and %v: the element types differ", what, x.Type, y.Type)
	}
	a, b := x.Type.Shape, y.Type.Shape
	shape := make([]int64, max(len(a), len(b)))
	for i := range shape {
		m, n := int64(1), int64(1)
		if k := i - len(shape) + len(a); k >= 0 {
			m = a[k]
		}
		if k := i - len(shape) + len(b); k >= 0 {
			n = b[k]
		}
		if m != n && m != 1 && n != 1 {
			s.fail("shape", "%s of %v and %v: the shapes don't fit (sizes %d and %d)", what, x.Type, y.Type, m, n)
		}
		shape[i] = max(m, n)
	}
	return s.BroadcastTo(x, shape...), s.BroadcastTo(y, shape...)
}

func (s *Scope) binary(name string, x, y *Tensor) *Tensor {
	x, y = s.pair(name, x, y)
	return s.Op(name, []*Tensor{x, y})
}

func (s *Scope) unary(name string, x *Tensor, attrs ...ir.Attr) *Tensor {
	return s.Op(name, []*Tensor{x}, attrs...)
}

// Add is x + y; like all binary operations here it broadcasts as numpy does.
func (s *Scope) Add(x, y *Tensor) *Tensor { return s.binary("add", x, y) }

// Sub is x − y.
func (s *Scope) Sub(x, y *Tensor) *Tensor { return s.binary("sub", x, y) }

// Mul is x · y, element by element.
func (s *Scope) Mul(x, y *Tensor) *Tensor { return s.binary("mul", x, y) }

// Div is x / y.
func (s *Scope) Div(x, y *Tensor) *Tensor { return s.binary("div", x, y) }

// Pow is x to the power y.
func (s *Scope) Pow(x, y *Tensor) *Tensor { return s.binary("pow", x, y) }

// Max is the greater of x and y; NaN wins.
func (s *Scope) Max(x, y *Tensor) *Tensor { return s.binary("max", x, y) }

// Min is the lesser of x and y; NaN wins.
func (s *Scope) Min(x, y *Tensor) *Tensor { return s.binary("min", x, y) }

// Scale is x · c.
func (s *Scope) Scale(x *Tensor, c float64) *Tensor { return s.Mul(x, s.Const(x.Type.DType, c)) }

// AddScalar is x + c.
func (s *Scope) AddScalar(x *Tensor, c float64) *Tensor { return s.Add(x, s.Const(x.Type.DType, c)) }

// Neg is −x.
func (s *Scope) Neg(x *Tensor) *Tensor { return s.unary("neg", x) }

// Exp is e to the power x.
func (s *Scope) Exp(x *Tensor) *Tensor { return s.unary("exp", x) }

// Log is the natural logarithm.
func (s *Scope) Log(x *Tensor) *Tensor { return s.unary("log", x) }

// Sqrt is the square root.
func (s *Scope) Sqrt(x *Tensor) *Tensor { return s.unary("sqrt", x) }

// Cos is the cosine.
func (s *Scope) Cos(x *Tensor) *Tensor { return s.unary("cos", x) }

// Sign is 1 for x > 0, −1 for x < 0, else x.
func (s *Scope) Sign(x *Tensor) *Tensor { return s.unary("sign", x) }

// Square is x · x.
func (s *Scope) Square(x *Tensor) *Tensor { return s.Mul(x, x) }

// Tanh is the hyperbolic tangent.
func (s *Scope) Tanh(x *Tensor) *Tensor { return s.unary("tanh", x) }

// Sigmoid is 1 / (1 + e⁻ˣ).
func (s *Scope) Sigmoid(x *Tensor) *Tensor { return s.unary("logistic", x) }

// Relu is x where x > 0, else 0.
func (s *Scope) Relu(x *Tensor) *Tensor { return s.unary("relu", x) }

// Gelu is the Gaussian error linear unit in its tanh form, as GPT-2 has it.
func (s *Scope) Gelu(x *Tensor) *Tensor { return s.unary("gelu", x, ir.A("approx", "tanh")) }

// GeluErf is the Gaussian error linear unit, exactly x·Φ(x).
func (s *Scope) GeluErf(x *Tensor) *Tensor { return s.unary("gelu", x, ir.A("approx", "none")) }

// Silu is x · sigmoid(x).
func (s *Scope) Silu(x *Tensor) *Tensor { return s.unary("silu", x) }

// Less is x < y, bool.
func (s *Scope) Less(x, y *Tensor) *Tensor {
	x, y = s.pair("compare", x, y)
	return s.Op("compare", []*Tensor{x, y}, ir.A("dir", "lt"))
}

// Select is x where pred holds, else y; all three broadcast.
func (s *Scope) Select(pred, x, y *Tensor) *Tensor {
	x, y = s.pair("select", x, y)
	return s.Op("select", []*Tensor{s.BroadcastTo(pred, x.Type.Shape...), x, y})
}

// Cast converts the elements to d.
func (s *Scope) Cast(x *Tensor, d dtype.Type) *Tensor {
	if x.Type.DType == d {
		return x
	}
	return s.unary("convert", x, ir.A("to", d))
}

// Reshape gives x another shape of equal length; one size may be −1.
func (s *Scope) Reshape(x *Tensor, shape ...int64) *Tensor {
	shape = slices.Clone(shape)
	n, hole := int64(1), -1
	for i, d := range shape {
		if d == -1 && hole < 0 {
			hole = i
			continue
		}
		n *= d
	}
	if hole >= 0 && n > 0 && x.Type.Len()%n == 0 {
		shape[hole] = x.Type.Len() / n
		n *= shape[hole]
	}
	if n != x.Type.Len() {
		s.fail("shape", "%v can't be reshaped to %v", x.Type, shape)
	}
	if slices.Equal(shape, x.Type.Shape) {
		return x
	}
	return s.unary("reshape", x, ir.A("shape", shape))
}

// Transpose permutes the axes: axis i of the result is axis perm[i] of x.
func (s *Scope) Transpose(x *Tensor, perm ...int64) *Tensor {
	return s.unary("transpose", x, ir.A("perm", perm))
}

// axis resolves a negative axis.
func (s *Scope) axis(x *Tensor, axis int) int64 {
	r := x.Type.Rank()
	if axis < 0 {
		axis += r
	}
	if axis < 0 || axis >= r {
		s.fail("shape", "axis %d of %v does not exist", axis, x.Type)
	}
	return int64(axis)
}

// Slice is elements lo … hi−1 along an axis.
func (s *Scope) Slice(x *Tensor, axis int, lo, hi int64) *Tensor {
	a := s.axis(x, axis)
	if lo < 0 || hi > x.Type.Shape[a] || lo >= hi {
		s.fail("shape", "elements %d … %d along axis %d of %v do not exist", lo, hi-1, a, x.Type)
	}
	start, limit := make([]int64, x.Type.Rank()), slices.Clone(x.Type.Shape)
	start[a], limit[a] = lo, hi
	return s.unary("slice", x, ir.A("start", start), ir.A("limit", limit))
}

// Concat joins along an axis.
func (s *Scope) Concat(axis int, xs ...*Tensor) *Tensor {
	if len(xs) == 1 {
		return xs[0]
	}
	return s.Op("concat", xs, ir.A("dim", s.axis(xs[0], axis)))
}

// Sum adds up along axes, which the result lacks.
func (s *Scope) Sum(x *Tensor, axes ...int) *Tensor {
	as := make([]int64, len(axes))
	for i, a := range axes {
		as[i] = s.axis(x, a)
	}
	slices.Sort(as)
	return s.unary("reduce", x, ir.A("kind", "sum"), ir.A("axes", as))
}

// SumAll adds up all elements.
func (s *Scope) SumAll(x *Tensor) *Tensor {
	axes := make([]int, x.Type.Rank())
	for i := range axes {
		axes[i] = i
	}
	if len(axes) == 0 {
		return x
	}
	return s.Sum(x, axes...)
}

// Mean is the mean along axes, which the result lacks.
func (s *Scope) Mean(x *Tensor, axes ...int) *Tensor {
	y := s.Sum(x, axes...)
	return s.Div(y, s.Const(x.Type.DType, float64(x.Type.Len()/y.Type.Len())))
}

// MeanAll is the mean of all elements.
func (s *Scope) MeanAll(x *Tensor) *Tensor {
	return s.Div(s.SumAll(x), s.Const(x.Type.DType, float64(x.Type.Len())))
}

// Softmax along the last axis.
func (s *Scope) Softmax(x *Tensor) *Tensor {
	return s.unary("softmax", x, ir.A("axis", int64(x.Type.Rank()-1)))
}

// MatMul contracts the last axis of x with the first of w: [..., K] × [K, N…] → [..., N…].
func (s *Scope) MatMul(x, w *Tensor) *Tensor {
	if x.Type.Rank() == 0 || w.Type.Rank() == 0 || x.Type.Shape[x.Type.Rank()-1] != w.Type.Shape[0] {
		s.fail("shape", "matmul of %v by %v: the last size of the first must be the first of the second", x.Type, w.Type)
	}
	return s.Contract(x, w, nil, nil, []int64{int64(x.Type.Rank() - 1)}, []int64{0})
}

// MatMulT contracts the last axes of both: [..., K] × [N, K] → [..., N].
func (s *Scope) MatMulT(x, w *Tensor) *Tensor {
	xr, wr := x.Type.Rank(), w.Type.Rank()
	if xr == 0 || wr == 0 || x.Type.Shape[xr-1] != w.Type.Shape[wr-1] {
		s.fail("shape", "matmul of %v by the transpose of %v: the last sizes must be equal", x.Type, w.Type)
	}
	return s.Contract(x, w, nil, nil, []int64{int64(xr - 1)}, []int64{int64(wr - 1)})
}

// Contract is the general contraction: the result has the batch axes, the free axes of
// a, then those of b.
func (s *Scope) Contract(a, b *Tensor, aBatch, bBatch, aSum, bSum []int64) *Tensor {
	return s.Op("contract", []*Tensor{a, b}, ir.A("lhs_batch", aBatch), ir.A("rhs_batch", bBatch),
		ir.A("lhs_contract", aSum), ir.A("rhs_contract", bSum))
}

// Take picks rows: table [V, …], indices of any shape → [indices…, …].
func (s *Scope) Take(table, indices *Tensor) *Tensor {
	return s.Op("take", []*Tensor{table, indices}, ir.A("axis", 0))
}

// Pick is the part at a position that is an operand: axis is indexed by the integer index
// (rank 0; outside of the axis it is clamped) and the result lacks it.
func (s *Scope) Pick(x *Tensor, axis int, index *Tensor) *Tensor {
	return s.Op("take", []*Tensor{x, index}, ir.A("axis", s.axis(x, axis)))
}

// Dropout drops elements with probability p in training and scales the others by
// 1/(1−p); otherwise, and with p = 0, it is x.
func (s *Scope) Dropout(x *Tensor, p float64) *Tensor {
	if p < 0 || p >= 1 || math.IsNaN(p) {
		s.fail("option", "dropout probability %v: want 0 ≤ p < 1", p)
	}
	if p == 0 || !s.g.train {
		return x
	}
	return s.random("dropout", []*Tensor{x, s.Key()}, ir.A("p", p))
}

// CrossEntropy is the mean over all rows of −log softmax(logits)[label]: logits [..., V],
// labels integers of shape [...].
func (s *Scope) CrossEntropy(logits, labels *Tensor) *Tensor {
	if r := logits.Type.Rank(); r == 0 || !slices.Equal(logits.Type.Shape[:r-1], labels.Type.Shape) {
		s.fail("shape", "cross-entropy of logits %v with labels %v: want labels of shape %s", logits.Type, labels.Type, leading(logits.Type))
	}
	return s.MeanAll(s.Op("cross_entropy", []*Tensor{logits, labels}))
}

func leading(t ir.Type) string {
	if t.Rank() == 0 {
		return "[…]"
	}
	return fmt.Sprint(t.Shape[:t.Rank()-1])
}

// MSE is the mean of squared differences.
func (s *Scope) MSE(x, y *Tensor) *Tensor { return s.Op("mse", []*Tensor{x, y}) }

// L1 is the mean of absolute differences.
func (s *Scope) L1(x, y *Tensor) *Tensor { return s.MeanAll(s.unary("abs", s.Sub(x, y))) }

// BinaryCrossEntropy is the mean of −y·log σ(x) − (1−y)·log(1−σ(x)), from logits x: that
// is softplus(x) − x·y, which does not overflow.
func (s *Scope) BinaryCrossEntropy(x, y *Tensor) *Tensor {
	return s.MeanAll(s.Sub(s.unary("softplus", x), s.Mul(x, y)))
}

package ops

import (
	"reprise/ir"
	"reprise/ir/dtype"
)

// em writes derivatives: a builder with short names for the ops that they use.
type em struct{ *ir.Builder }

func (e em) op1(name string, x *ir.Value, attrs ...ir.Attr) *ir.Value {
	return e.Op(name, []*ir.Value{x}, attrs...)
}

func (e em) op2(name string, x, y *ir.Value, attrs ...ir.Attr) *ir.Value {
	return e.Op(name, []*ir.Value{x, y}, attrs...)
}

func (e em) add(x, y *ir.Value) *ir.Value { return e.op2("add", x, y) }
func (e em) sub(x, y *ir.Value) *ir.Value { return e.op2("sub", x, y) }
func (e em) mul(x, y *ir.Value) *ir.Value { return e.op2("mul", x, y) }
func (e em) div(x, y *ir.Value) *ir.Value { return e.op2("div", x, y) }

// eq is x == y, bool.
func (e em) eq(x, y *ir.Value) *ir.Value { return e.op2("compare", x, y, ir.A("dir", "eq")) }

// sel is c ? x : y.
func (e em) sel(c, x, y *ir.Value) *ir.Value { return e.Op("select", []*ir.Value{c, x, y}) }

// conv is x as d.
func (e em) conv(x *ir.Value, d dtype.Type) *ir.Value {
	if x.Type.DType == d {
		return x
	}
	return e.op1("convert", x, ir.A("to", d))
}

// spread is x as a value of shape, x's dimension i being dims[i] of it.
func (e em) spread(x *ir.Value, shape, dims []int64) *ir.Value {
	return e.op1("broadcast", x, ir.A("shape", shape), ir.A("dims", dims))
}

// sum is the sum along axes.
func (e em) sum(x *ir.Value, axes []int64) *ir.Value {
	return e.op1("reduce", x, ir.A("kind", "sum"), ir.A("axes", axes))
}

func (e em) reshape(x *ir.Value, shape []int64) *ir.Value {
	return e.op1("reshape", x, ir.A("shape", shape))
}

func (e em) transpose(x *ir.Value, perm []int64) *ir.Value {
	return e.op1("transpose", x, ir.A("perm", perm))
}

// zeros is a value of t filled with +0.
func (e em) zeros(t ir.Type) *ir.Value { return e.fill(t, 0) }

// fill is a value of t whose elements are v.
func (e em) fill(t ir.Type, v float64) *ir.Value {
	c := e.Op("constant", nil, ir.A("value", scalarTensor(t.DType, v)))
	return e.spread(c, t.Shape, []int64{})
}

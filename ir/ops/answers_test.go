package ops_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/autodiff"
)

// run builds one op and runs its reference.
func run(t *testing.T, op string, in []*tensor.Tensor, attrs ...ir.Attr) ([]*tensor.Tensor, error) {
	t.Helper()
	var types []ir.Type
	for _, x := range in {
		types = append(types, ir.T(x.DType, x.Shape...))
	}
	_, f := newFunc(types)
	o, err := f.MakeOp(ops.Table().Must(op), f.Body.Params, ir.MakeAttrs(attrs...), nil, here())
	require.NoError(t, err)
	f.Body.Append(o)
	f.Body.Results = o.Results
	return interp.Run(f, in)
}

func f32s(shape []int64, v ...float32) *tensor.Tensor { return tensor.Of(v, shape...) }
func i32s(shape []int64, v ...int32) *tensor.Tensor   { return tensor.Of(v, shape...) }

func shape(n ...int64) []int64 { return n }

// Answers worked out by hand: the laws compare what we wrote with what we wrote.
func TestKnownAnswers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	x24 := f32s(shape(2, 4), 1, 2, 3, 4, 5, 6, 7, 8)
	count := func(n int64) *tensor.Tensor { // 0, 1, 2, …
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(i)
		}
		return f32s(shape(n), v...)
	}
	for _, c := range []struct {
		name, op string
		in       []*tensor.Tensor
		attrs    []ir.Attr
		want     []*tensor.Tensor
	}{
		{"rows", "reduce", []*tensor.Tensor{x24}, []ir.Attr{ir.A("kind", "sum"), ir.A("axes", shape(1))},
			[]*tensor.Tensor{f32s(shape(2), 10, 26)}},
		{"columns", "reduce", []*tensor.Tensor{x24}, []ir.Attr{ir.A("kind", "prod"), ir.A("axes", shape(0))},
			[]*tensor.Tensor{f32s(shape(4), 5, 12, 21, 32)}},
		{"nothing", "reduce", []*tensor.Tensor{f32s(shape(2, 0))}, []ir.Attr{ir.A("kind", "max"), ir.A("axes", shape(1))},
			[]*tensor.Tensor{f32s(shape(2), -inf, -inf)}},
		// Element 64 joins the partial of element 0, so 1 survives; one after the other it would be lost.
		{"partials", "reduce", []*tensor.Tensor{func() *tensor.Tensor {
			v := make([]float32, 65)
			v[0], v[1], v[64] = 1e8, 1, -1e8
			return f32s(shape(65), v...)
		}()}, []ir.Attr{ir.A("kind", "sum"), ir.A("axes", shape(0))}, []*tensor.Tensor{f32s(shape(), 1)}},
		// Chunks of 1024 join in order: 1 of the second chunk is lost in 1e8 of the first, whose opposite is in the third.
		{"chunks", "reduce", []*tensor.Tensor{func() *tensor.Tensor {
			v := make([]float32, 2049)
			v[0], v[1024], v[2048] = 1e8, 1, -1e8
			return f32s(shape(2049), v...)
		}()}, []ir.Attr{ir.A("kind", "sum"), ir.A("axes", shape(0))}, []*tensor.Tensor{f32s(shape(), 0)}},
		{"first wins", "argmax", []*tensor.Tensor{f32s(shape(2, 3), 1, 5, 5, nan, 7, nan)}, []ir.Attr{ir.A("axis", 1)},
			[]*tensor.Tensor{i32s(shape(2), 1, 0)}},
		{"3×3 by 2×2", "conv", []*tensor.Tensor{f32s(shape(1, 1, 3, 3), 1, 2, 3, 4, 5, 6, 7, 8, 9), f32s(shape(1, 1, 2, 2), 1, 10, 100, 1000)}, nil,
			[]*tensor.Tensor{f32s(shape(1, 1, 2, 2), 5421, 6532, 8754, 9865)}},
		{"padding and stride", "conv", []*tensor.Tensor{f32s(shape(1, 1, 3), 1, 2, 3), f32s(shape(1, 1, 2), 1, 10)},
			[]ir.Attr{ir.A("strides", shape(2)), ir.A("padding", shape(1, 1))}, []*tensor.Tensor{f32s(shape(1, 1, 2), 10, 32)}},
		{"flipped", "conv", []*tensor.Tensor{f32s(shape(1, 1, 3), 1, 2, 3), f32s(shape(1, 1, 2), 1, 10)}, []ir.Attr{ir.A("reverse", true)},
			[]*tensor.Tensor{f32s(shape(1, 1, 2), 12, 23)}},
		{"dilated input", "conv", []*tensor.Tensor{f32s(shape(1, 1, 2), 1, 2), f32s(shape(1, 1, 2), 1, 10)}, []ir.Attr{ir.A("lhs_dilation", shape(3))},
			[]*tensor.Tensor{f32s(shape(1, 1, 3), 1, 0, 20)}},
		{"feature groups", "conv", []*tensor.Tensor{f32s(shape(1, 2, 1), 3, 5), f32s(shape(4, 1, 1), 1, 2, 3, 4)}, []ir.Attr{ir.A("feature_groups", 2)},
			[]*tensor.Tensor{f32s(shape(1, 4, 1), 3, 6, 15, 20)}},
		{"batch groups", "conv", []*tensor.Tensor{f32s(shape(2, 1, 1), 3, 5), f32s(shape(4, 1, 1), 1, 2, 3, 4)}, []ir.Attr{ir.A("batch_groups", 2)},
			[]*tensor.Tensor{f32s(shape(1, 4, 1), 3, 6, 15, 20)}},
		{"max", "max_pool", []*tensor.Tensor{f32s(shape(1, 4), 1, 3, 2, nan)}, []ir.Attr{ir.A("window", shape(1, 2)), ir.A("strides", shape(1, 2)), ir.A("padding", shape(0, 0, 1, 1))},
			[]*tensor.Tensor{f32s(shape(1, 3), 1, 3, nan)}},
		{"mean without padding", "avg_pool", []*tensor.Tensor{f32s(shape(3), 1, 3, 5)}, []ir.Attr{ir.A("window", shape(2)), ir.A("padding", shape(1, 0))},
			[]*tensor.Tensor{f32s(shape(3), 1, 2, 4)}},
		{"mean with padding", "avg_pool", []*tensor.Tensor{f32s(shape(3), 1, 3, 5)}, []ir.Attr{ir.A("window", shape(2)), ir.A("padding", shape(1, 0)), ir.A("count_padding", true)},
			[]*tensor.Tensor{f32s(shape(3), 0.5, 2, 4)}},
		{"first of equals, overlapping", "select_and_scatter", []*tensor.Tensor{f32s(shape(4), 1, 4, 4, 2), f32s(shape(3), 1, 10, 100)}, []ir.Attr{ir.A("window", shape(2))},
			[]*tensor.Tensor{f32s(shape(4), 0, 11, 100, 0)}},
		{"clamped", "take", []*tensor.Tensor{x24, i32s(shape(3), -1, 1, 9)}, []ir.Attr{ir.A("axis", 1)},
			[]*tensor.Tensor{f32s(shape(2, 3), 1, 2, 4, 5, 6, 8)}},
		{"repeated", "take_grad", []*tensor.Tensor{f32s(shape(3, 2), 1, 2, 3, 4, 5, 6), i32s(shape(3), 1, 0, 1)}, []ir.Attr{ir.A("size", 3)},
			[]*tensor.Tensor{f32s(shape(3, 2), 3, 4, 6, 8, 0, 0)}},
		{"along", "take_along", []*tensor.Tensor{x24, i32s(shape(2, 2), 3, 0, 1, 1)}, []ir.Attr{ir.A("axis", 1)},
			[]*tensor.Tensor{f32s(shape(2, 2), 4, 1, 6, 6)}},
		{"window, clamped", "gather", []*tensor.Tensor{count(6), i32s(shape(2, 1), 1, 5)},
			[]ir.Attr{ir.A("offset_dims", shape(1)), ir.A("start_index_map", shape(0)), ir.A("index_vector_dim", 1), ir.A("slice_sizes", shape(3))},
			[]*tensor.Tensor{f32s(shape(2, 3), 1, 2, 3, 3, 4, 5)}},
		{"window, filled", "gather", []*tensor.Tensor{count(6), i32s(shape(2, 1), -1, 5)},
			[]ir.Attr{ir.A("offset_dims", shape(1)), ir.A("start_index_map", shape(0)), ir.A("index_vector_dim", 1), ir.A("slice_sizes", shape(3)), ir.A("mode", "fill")},
			[]*tensor.Tensor{f32s(shape(2, 3), 0, 0, 1, 5, 0, 0)}},
		{"last wins, outside dropped", "scatter", []*tensor.Tensor{count(4), i32s(shape(3), 2, 2, 4), f32s(shape(3), 10, 20, 30)},
			[]ir.Attr{ir.A("inserted_window_dims", shape(0)), ir.A("scatter_dims_to_operand_dims", shape(0)), ir.A("index_vector_dim", 1)},
			[]*tensor.Tensor{f32s(shape(4), 0, 1, 20, 3)}},
		{"added", "scatter", []*tensor.Tensor{count(4), i32s(shape(3), 2, 2, -1), f32s(shape(3), 10, 20, 30)},
			[]ir.Attr{ir.A("inserted_window_dims", shape(0)), ir.A("scatter_dims_to_operand_dims", shape(0)), ir.A("index_vector_dim", 1), ir.A("kind", "add")},
			[]*tensor.Tensor{f32s(shape(4), 0, 1, 32, 3)}},
		{"clamped", "dynamic_slice", []*tensor.Tensor{x24, i32s(shape(), -3), i32s(shape(), 9)}, []ir.Attr{ir.A("sizes", shape(1, 2))},
			[]*tensor.Tensor{f32s(shape(1, 2), 3, 4)}},
		{"clamped", "dynamic_update_slice", []*tensor.Tensor{x24, f32s(shape(1, 2), 0, 0), i32s(shape(), 1), i32s(shape(), 9)}, nil,
			[]*tensor.Tensor{f32s(shape(2, 4), 1, 2, 3, 4, 5, 6, 0, 0)}},
		{"outside is zero", "one_hot", []*tensor.Tensor{i32s(shape(3), 1, -1, 2)}, []ir.Attr{ir.A("depth", 2)},
			[]*tensor.Tensor{f32s(shape(3, 2), 0, 1, 0, 0, 0, 0)}},
		{"outside is dropped", "histogram", []*tensor.Tensor{i32s(shape(5), 1, 1, -1, 3, 0)}, []ir.Attr{ir.A("bins", 3)},
			[]*tensor.Tensor{i32s(shape(3), 1, 2, 0)}},
		{"NaN last, zeros keep their order", "sort", []*tensor.Tensor{f32s(shape(5), nan, 0, float32(math.Copysign(0, -1)), -inf, 1), i32s(shape(5), 0, 1, 2, 3, 4)}, []ir.Attr{ir.A("axis", 0)},
			[]*tensor.Tensor{f32s(shape(5), -inf, 0, float32(math.Copysign(0, -1)), 1, nan), i32s(shape(5), 3, 1, 2, 4, 0)}},
		{"descending keeps equals", "argsort", []*tensor.Tensor{i32s(shape(4), 1, 2, 1, 2)}, []ir.Attr{ir.A("axis", 0), ir.A("descending", true)},
			[]*tensor.Tensor{i32s(shape(4), 1, 3, 0, 2)}},
		{"ties by index", "top_k", []*tensor.Tensor{f32s(shape(1, 4), 2, 3, 3, 1)}, []ir.Attr{ir.A("k", 3)},
			[]*tensor.Tensor{f32s(shape(1, 3), 3, 3, 2), i32s(shape(1, 3), 1, 2, 0)}},
		{"exclusive", "cumsum", []*tensor.Tensor{f32s(shape(3), 1, 2, 4)}, []ir.Attr{ir.A("axis", 0), ir.A("exclusive", true)},
			[]*tensor.Tensor{f32s(shape(3), 0, 1, 3)}},
		{"reverse", "cumprod", []*tensor.Tensor{f32s(shape(3), 2, 3, 4)}, []ir.Attr{ir.A("axis", 0), ir.A("reverse", true)},
			[]*tensor.Tensor{f32s(shape(3), 24, 12, 4)}},
		{"last of equals", "cumarg", []*tensor.Tensor{f32s(shape(5), 1, 2, 2, nan, 3)}, []ir.Attr{ir.A("axis", 0), ir.A("kind", "max")},
			[]*tensor.Tensor{i32s(shape(5), 0, 1, 2, 3, 3)}},
		{"recurrence", "linear_scan", []*tensor.Tensor{f32s(shape(3), nan, 2, 3), f32s(shape(3), 1, 1, 1)}, []ir.Attr{ir.A("axis", 0)},
			[]*tensor.Tensor{f32s(shape(3), 1, 3, 10)}},
		{"two groups and a rest", "grouped_contract", []*tensor.Tensor{f32s(shape(4, 1), 1, 2, 3, 4), f32s(shape(2, 1, 2), 1, 10, 100, 1000), i32s(shape(2), 1, 2)}, nil,
			[]*tensor.Tensor{f32s(shape(4, 2), 1, 10, 200, 2000, 300, 3000, 0, 0)}},
		{"two groups and a rest", "grouped_outer", []*tensor.Tensor{f32s(shape(4, 1), 1, 2, 3, 4), f32s(shape(4, 1), 1, 1, 10, 1), i32s(shape(2), 1, 2)}, nil,
			[]*tensor.Tensor{f32s(shape(2, 1, 1), 1, 32)}},
	} {
		t.Run(c.op+"/"+c.name, func(t *testing.T) {
			got, err := run(t, c.op, c.in, c.attrs...)
			require.NoError(t, err)
			require.Len(t, got, len(c.want))
			for i := range got {
				assert.NoError(t, sameBits(c.want[i], got[i]), "result %d", i)
			}
		})
	}
}

// What can't be run says so by name.
func TestWhatCannotRun(t *testing.T) {
	x := f32s(shape(3), 1, 2, 3)
	_, err := run(t, "foreign", []*tensor.Tensor{x}, ir.A("symbol", "fast_gelu"), ir.A("library", "libfast.so"), ir.A("results", []string{"f32[3]"}))
	assert.ErrorContains(t, err, `foreign kernel "fast_gelu" of library "libfast.so" can't be interpreted`)
	_, err = run(t, "all_reduce", []*tensor.Tensor{x}, ir.A("size", 2))
	assert.ErrorContains(t, err, "all_reduce of 2 participants needs the runtime of several machines")
	_, err = run(t, "assert", []*tensor.Tensor{tensor.Of([]bool{true, false}, 2)}, ir.A("message", "loss is finite"))
	assert.ErrorContains(t, err, "assertion failed: loss is finite (element 1 of 2 is false)")
	_, err = run(t, "assert", []*tensor.Tensor{tensor.Of([]bool{true, true}, 2)})
	assert.NoError(t, err)
}

// Messages name what does not fit, with both shapes.
func TestShapeMessages(t *testing.T) {
	for _, c := range []struct {
		op    string
		types []ir.Type
		attrs []ir.Attr
		want  string
	}{
		{"reduce", []ir.Type{ir.T(dtype.F32, 2, 3)}, []ir.Attr{ir.A("kind", "sum"), ir.A("axes", shape(2))}, "layer law: reduce: axis 2 is outside rank 2 of operand f32[2,3]"},
		{"reduce", []ir.Type{ir.T(dtype.F32, 2, 3)}, []ir.Attr{ir.A("kind", "and"), ir.A("axes", shape(1))},
			`layer law: reduce: kind "and" does not exist for f32 (constraint reduce/C1: kind exists for the element type)`},
		{"conv", []ir.Type{ir.T(dtype.F32, 1, 3, 8, 8), ir.T(dtype.F32, 4, 2, 3, 3)}, nil,
			"layer law: conv: input f32[1,3,8,8] has 3 features, kernel f32[4,2,3,3] reads 2 in each of 1 groups"},
		{"take_along", []ir.Type{ir.T(dtype.F32, 2, 3), ir.T(dtype.I32, 3, 3)}, []ir.Attr{ir.A("axis", 1)}, "layer law: take_along: x f32[2,3] and indices i32[3,3] differ in dimension 0"},
		{"dynamic_update_slice", []ir.Type{ir.T(dtype.F32, 2), ir.T(dtype.F32, 3), ir.T(dtype.I32)}, nil, "layer law: dynamic_update_slice: update f32[3] does not fit in operand f32[2]"},
		{"scatter", []ir.Type{ir.T(dtype.F32, 4), ir.T(dtype.I32, 3), ir.T(dtype.F32, 2)},
			[]ir.Attr{ir.A("inserted_window_dims", shape(0)), ir.A("scatter_dims_to_operand_dims", shape(0)), ir.A("index_vector_dim", 1)},
			"layer law: scatter: updates f32[2], want f32[3] (operand f32[4], indices i32[3])"},
		{"grouped_contract", []ir.Type{ir.T(dtype.F32, 9, 5), ir.T(dtype.F32, 3, 4, 2), ir.T(dtype.I32, 3)}, nil,
			"layer law: grouped_contract: rows of x f32[9,5] do not fit w f32[3,4,2] (transpose false)"},
		{"select_and_scatter", []ir.Type{ir.T(dtype.F32, 6), ir.T(dtype.F32, 6)}, []ir.Attr{ir.A("window", shape(2))},
			"layer law: select_and_scatter: source f32[6], want f32[5] for operand f32[6]"},
	} {
		_, f := newFunc(c.types)
		_, err := f.MakeOp(ops.Table().Must(c.op), f.Body.Params, ir.MakeAttrs(c.attrs...), nil, here())
		assert.EqualError(t, err, c.want)
	}
}

// Gradients at ties and zeros, where differences say nothing: those that PyTorch gives, too.
func TestKnownGradients(t *testing.T) {
	table := ops.Table()
	f64s := func(shape []int64, v ...float64) *tensor.Tensor { return tensor.Of(v, shape...) }
	for _, c := range []struct {
		name, op string
		in       []*tensor.Tensor
		attrs    []ir.Attr
		want     []*tensor.Tensor // of the float operands, for cotangents 1, 2, 3, …
	}{
		{"one zero", "reduce", []*tensor.Tensor{f64s(shape(3), 2, 0, 5)}, []ir.Attr{ir.A("kind", "prod"), ir.A("axes", shape(0))}, []*tensor.Tensor{f64s(shape(3), 0, 10, 0)}},
		{"two zeros", "reduce", []*tensor.Tensor{f64s(shape(3), 0, 0, 5)}, []ir.Attr{ir.A("kind", "prod"), ir.A("axes", shape(0))}, []*tensor.Tensor{f64s(shape(3), 0, 0, 0)}},
		{"ties share", "reduce", []*tensor.Tensor{f64s(shape(2, 3), 7, 1, 7, 2, 3, 3)}, []ir.Attr{ir.A("kind", "max"), ir.A("axes", shape(1))},
			[]*tensor.Tensor{f64s(shape(2, 3), 0.5, 0, 0.5, 0, 1, 1)}},
		{"zero", "cumprod", []*tensor.Tensor{f64s(shape(3), 2, 0, 5)}, []ir.Attr{ir.A("axis", 0)}, []*tensor.Tensor{f64s(shape(3), 1, 4+30, 0)}},
		{"last of equals", "cummax", []*tensor.Tensor{f64s(shape(4), 1, 3, 3, 2)}, []ir.Attr{ir.A("axis", 0)}, []*tensor.Tensor{f64s(shape(4), 1, 2, 7, 0)}},
		{"first of equals", "max_pool", []*tensor.Tensor{f64s(shape(4), 1, 4, 4, 2)}, []ir.Attr{ir.A("window", shape(2))}, []*tensor.Tensor{f64s(shape(4), 0, 3, 3, 0)}},
		{"last update wins", "scatter", []*tensor.Tensor{f64s(shape(3), 1, 1, 1), i32s(shape(3), 2, 2, 3), f64s(shape(3), 5, 6, 7)},
			[]ir.Attr{ir.A("inserted_window_dims", shape(0)), ir.A("scatter_dims_to_operand_dims", shape(0)), ir.A("index_vector_dim", 1)},
			[]*tensor.Tensor{f64s(shape(3), 1, 2, 0), f64s(shape(3), 0, 3, 0)}},
		{"zero update", "scatter", []*tensor.Tensor{f64s(shape(2), 4, 3), i32s(shape(3), 1, 1, 0), f64s(shape(3), 0, 5, 2)},
			[]ir.Attr{ir.A("inserted_window_dims", shape(0)), ir.A("scatter_dims_to_operand_dims", shape(0)), ir.A("index_vector_dim", 1), ir.A("kind", "mul")},
			[]*tensor.Tensor{f64s(shape(2), 2, 0), f64s(shape(3), 30, 0, 4)}},
		{"ties share", "scatter", []*tensor.Tensor{f64s(shape(2), 5, 1), i32s(shape(3), 0, 0, 1), f64s(shape(3), 5, 4, 9)},
			[]ir.Attr{ir.A("inserted_window_dims", shape(0)), ir.A("scatter_dims_to_operand_dims", shape(0)), ir.A("index_vector_dim", 1), ir.A("kind", "max")},
			[]*tensor.Tensor{f64s(shape(2), 0.5, 0), f64s(shape(3), 0.5, 0, 2)}},
		{"stable", "sort", []*tensor.Tensor{f64s(shape(3), 2, 1, 1)}, []ir.Attr{ir.A("axis", 0)}, []*tensor.Tensor{f64s(shape(3), 3, 1, 2)}},
		{"lower index", "top_k", []*tensor.Tensor{f64s(shape(3), 2, 3, 3)}, []ir.Attr{ir.A("k", 2)}, []*tensor.Tensor{f64s(shape(3), 0, 1, 2)}},
		{"twice the same row", "take", []*tensor.Tensor{f64s(shape(2), 8, 9), i32s(shape(3), 1, 0, 1)}, nil, []*tensor.Tensor{f64s(shape(2), 2, 4)}},
	} {
		t.Run(c.op+"/"+c.name, func(t *testing.T) {
			var types []ir.Type
			for _, x := range c.in {
				types = append(types, ir.T(x.DType, x.Shape...))
			}
			m, f := newFunc(types)
			b := ir.NewBuilder(table, f.Body, here())
			y := b.Multi(c.op, f.Body.Params, nil, c.attrs...).Results[0]
			w := make([]float64, y.Type.Len())
			axes := make([]int64, y.Type.Rank())
			for i := range w {
				w[i] = float64(i + 1)
			}
			for i := range axes {
				axes[i] = int64(i)
			}
			cot := b.Op("constant", nil, ir.A("value", tensor.Of(w, y.Type.Shape...)))
			loss := b.Op("reduce", []*ir.Value{b.Op("mul", []*ir.Value{y, cot})}, ir.A("kind", "sum"), ir.A("axes", axes))
			xs := []*ir.Value{loss}
			for _, p := range f.Body.Params {
				if p.Type.DType.IsFloat() {
					xs = append(xs, p)
				}
			}
			f.Body.Results = b.Multi("gradient", xs, nil).Results
			for i := range f.Body.Results {
				f.Results = append(f.Results, string(rune('a'+i)))
			}
			require.NoError(t, autodiff.Run(m, table))
			got, err := interp.Run(f, c.in)
			require.NoError(t, err)
			require.Len(t, got, len(c.want))
			for i := range got {
				assert.Equal(t, c.want[i].F64(), got[i].F64(), "gradient %d", i)
			}
		})
	}
}

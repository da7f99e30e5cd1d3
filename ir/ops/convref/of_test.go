package convref_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/ops/convref"
	"reprise/ir/tensor"
)

// TestOfEqualsOp: the op's own reference and that of the kernel it is described by
// give the same bits.
func TestOfEqualsOp(t *testing.T) {
	table := ops.Table()
	one := func(name string, v ...int64) ir.Attr { return ir.A(name, v) }
	for _, c := range []struct {
		name  string
		x, w  []int64
		attrs []ir.Attr
	}{
		{"plain", []int64{2, 3, 7, 8}, []int64{5, 3, 3, 2}, nil},
		{"strides and padding", []int64{1, 4, 9, 9}, []int64{6, 2, 3, 3}, []ir.Attr{one("strides", 2, 3), one("padding", 1, 2, -1, 1), ir.A("feature_groups", int64(2))}},
		{"dilations, reversed", []int64{4, 2, 6}, []int64{4, 2, 3}, []ir.Attr{one("lhs_dilation", 3), one("rhs_dilation", 2), one("padding", 2, 2), ir.A("reverse", true), ir.A("batch_groups", int64(2))}},
		{"layouts", []int64{5, 6, 3, 2}, []int64{3, 3, 3, 4}, []ir.Attr{one("x_dims", 3, 2, 0, 1), one("w_dims", 3, 2, 0, 1), one("y_dims", 3, 1, 2, 0)}},
		{"segments", []int64{1, 7, 60, 62}, []int64{2, 7, 40, 50}, nil},
		{"no space", []int64{3, 4}, []int64{2, 4}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := ir.NewModule("m").NewFunc("f")
			x, w := f.Body.AddParam("x", ir.T(dtype.F32, c.x...)), f.Body.AddParam("w", ir.T(dtype.F32, c.w...))
			var op *ir.Op
			err := func() (err error) {
				defer diag.Catch(&err)
				op = ir.NewBuilder(table, f.Body, ir.Loc{Layer: "conv"}).Multi("conv", []*ir.Value{x, w}, nil, c.attrs...)
				return nil
			}()
			require.NoError(t, err)
			r := rand.New(rand.NewPCG(1, 2))
			in := []*tensor.Tensor{tensor.New(dtype.F32, c.x...), tensor.New(dtype.F32, c.w...)}
			for _, x := range in {
				for i := range x.F32() {
					x.F32()[i] = float32(r.NormFloat64())
				}
			}
			want, err := op.Def.Ref(nil, op, in)
			require.NoError(t, err)
			k, err := convref.Of(op)
			require.NoError(t, err)
			require.NoError(t, k.Check())
			require.Equal(t, want[0].F32(), convref.Conv32(k, in[0].F32(), in[1].F32()))
		})
	}
}

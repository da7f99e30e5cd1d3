package convref

import (
	"slices"

	"reprise/ir"
	"reprise/ir/kern"
	"reprise/ir/ops"
)

// Of is an op conv as a kernel of the convolution family: in is the op's first
// operand, ker its second, out its result, all densely packed and row-major.
func Of(op *ir.Op) (*kern.Conv, error) {
	d, err := ops.ConvDimsOf(op)
	if err != nil {
		return nil, err
	}
	x, w, y := op.In(0), op.In(1), op.Out(0)
	xs, ws, ys := strides(x.Shape), strides(w.Shape), strides(y.Shape)
	c := &kern.Conv{
		Name: op.Name(), DType: x.DType,
		Batch: d.Batch, Channels: d.Out, InChannels: d.In,
		Groups: d.FeatureGroups, BatchGroups: d.BatchGroups, Segment: d.Segment,
		InBatch: xs[d.X[0]], InChannel: xs[d.X[1]],
		KerOut: ws[d.W[0]], KerIn: ws[d.W[1]],
		OutBatch: ys[d.Y[0]], OutChannel: ys[d.Y[1]],
		LenIn: x.Len(), LenKer: w.Len(), LenOut: y.Len(),
	}
	n := x.Rank() - 2
	attr := func(name string, n int, value int64) []int64 {
		if v := op.Attrs.Ints(name); len(v) > 0 {
			return v
		}
		return slices.Repeat([]int64{value}, n)
	}
	step, pad := attr("strides", n, 1), attr("padding", 2*n, 0)
	inner, outer := attr("lhs_dilation", n, 1), attr("rhs_dilation", n, 1)
	for i := range n {
		xd, wd, yd := d.X[2+i], d.W[2+i], d.Y[2+i]
		c.Spatial = append(c.Spatial, kern.ConvDim{
			In: x.Shape[xd], Kernel: w.Shape[wd], Out: y.Shape[yd],
			Stride: step[i], InDilation: inner[i], KernelDilation: outer[i], PadLo: pad[2*i], Reverse: d.Reverse,
			StrideIn: xs[xd], StrideKer: ws[wd], StrideOut: ys[yd],
		})
	}
	return c, nil
}

// strides are those of a dense row-major array.
func strides(shape []int64) []int64 {
	s := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = n
		n *= shape[i]
	}
	return s
}

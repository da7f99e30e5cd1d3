package kern

import (
	"fmt"

	"reprise/ir/dtype"
)

// Conv is a convolution of any number of spatial dimensions: for output image n,
// output channel o and output position p (one index per spatial dimension),
//
//	out[n, o, p] = Σ_c Σ_k in[n', c', x] · ker[o, c, k]
//	x_d = (p_d·Stride_d + k_d·KernelDilation_d − PadLo_d) / InDilation_d
//
// with c over the InChannels of a group and k over the kernel's positions. A tap,
// one (c, k), exists only where the division has no rest and 0 ≤ x_d < In_d in every
// dimension: taps that fall into padding or between dilated inputs are left out of
// the sum, rather than adding zeros.
//
// Order: per output element one chain of fma from +0 over the taps that exist, c
// outermost and increasing, then k in row-major order, last dimension fastest:
// acc = fma(in, ker, acc). Where Segment < InChannels, every Segment channels make such a
// chain (the last maybe fewer), and the chains are added from the left.
//
// Groups (feature groups) cut the output channels into runs of Channels/Groups, run
// g reading input channels c' = g·InChannels + c. BatchGroups cut the output channels
// likewise, run g reading images n' = g·Batch + n. At most one of the two is above 1;
// both are at least 1.
//
// Strides count elements, so that any layout, and any exchange of the roles of
// batch and channel (which is what the gradient for the kernel is), can be said.
type Conv struct {
	Name        string
	DType       dtype.Type // of in, ker and out
	Batch       int64      // images of the output
	Channels    int64      // output channels
	InChannels  int64      // input channels of one group
	Groups      int64
	BatchGroups int64
	Segment     int64 // input channels of one chain
	Spatial     []ConvDim

	InBatch, InChannel   int64 // strides of in
	KerOut, KerIn        int64 // strides of ker
	OutBatch, OutChannel int64 // strides of out

	LenIn, LenKer, LenOut int64 // elements of the buffers
}

// ConvDim is one spatial dimension.
type ConvDim struct {
	In, Kernel, Out            int64 // sizes
	Stride                     int64 // of the window, ≥ 1
	InDilation, KernelDilation int64 // ≥ 1
	PadLo                      int64 // may be negative; the upper padding follows from Out
	Reverse                    bool  // tap k reads kernel position Kernel−1−k
	StrideIn, StrideKer        int64
	StrideOut                  int64
}

// Taps is the number of taps that exist, of all output positions together.
func (d *ConvDim) Taps() int64 {
	n := int64(0)
	for p := range d.Out {
		for k := range d.Kernel {
			x := p*d.Stride + k*d.KernelDilation - d.PadLo
			if x >= 0 && x%d.InDilation == 0 && x/d.InDilation < d.In {
				n++
			}
		}
	}
	return n
}

// Empty tells whether the result has no elements, and whether no tap exists, so that
// all elements are +0.
func (c *Conv) Empty() (result, taps bool) {
	result, taps = c.Batch == 0 || c.Channels == 0, c.InChannels == 0
	for _, d := range c.Spatial {
		result = result || d.Out == 0
		taps = taps || d.In == 0 || d.Kernel == 0
	}
	return result, taps
}

// Check reports what makes c no convolution, or one that reads or writes outside
// of its buffers. Sizes may be 0.
func (c *Conv) Check() error {
	if c.Batch < 0 || c.Channels < 0 || c.InChannels < 0 || c.Groups < 1 || c.BatchGroups < 1 {
		return fmt.Errorf("conv %s: negative sizes, or no groups", c.Name)
	}
	if c.Groups > 1 && c.BatchGroups > 1 {
		return fmt.Errorf("conv %s: feature groups and batch groups at once", c.Name)
	}
	if c.Channels%(c.Groups*c.BatchGroups) != 0 {
		return fmt.Errorf("conv %s: %d output channels are no multiple of %d groups", c.Name, c.Channels, c.Groups*c.BatchGroups)
	}
	in := (c.Batch*c.BatchGroups-1)*c.InBatch + (c.InChannels*c.Groups-1)*c.InChannel
	ker := (c.Channels-1)*c.KerOut + (c.InChannels-1)*c.KerIn
	out := (c.Batch-1)*c.OutBatch + (c.Channels-1)*c.OutChannel
	for i, d := range c.Spatial {
		if d.In < 0 || d.Kernel < 0 || d.Out < 0 || d.Stride < 1 || d.InDilation < 1 || d.KernelDilation < 1 {
			return fmt.Errorf("conv %s: spatial dimension %d: negative sizes, or strides or dilations below 1", c.Name, i)
		}
		in += (d.In - 1) * d.StrideIn
		ker += (d.Kernel - 1) * d.StrideKer
		out += (d.Out - 1) * d.StrideOut
	}
	noResult, noTaps := c.Empty()
	if !noTaps && c.Segment < 1 {
		return fmt.Errorf("conv %s: chains of %d channels", c.Name, c.Segment)
	}
	if !noResult && (out >= c.LenOut || !noTaps && (in >= c.LenIn || ker >= c.LenKer)) {
		return fmt.Errorf("conv %s: last elements %d, %d, %d lie outside of buffers of %d, %d, %d", c.Name, in, ker, out, c.LenIn, c.LenKer, c.LenOut)
	}
	return nil
}

// Package convref is the plain reference of convolution: slow, obvious, and
// normative for every back end, bit for bit. The order of arithmetic is said at
// kern.Conv.
package convref

import (
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// Conv32 is the convolution of in and ker in f32; out holds zeros where c writes
// nothing.
func Conv32(c *kern.Conv, in, ker []float32) (out []float32) {
	return conv(c, in, ker, scalar.Fma32)
}

// Conv64 is the convolution of in and ker in f64.
func Conv64(c *kern.Conv, in, ker []float64) (out []float64) {
	return conv(c, in, ker, scalar.Fma64)
}

func conv[T float32 | float64](c *kern.Conv, in, ker []T, fma func(a, b, acc T) T) []T {
	out := make([]T, c.LenOut)
	run := c.Channels / (c.Groups * c.BatchGroups) // output channels of a group
	for n := range c.Batch {
		for o := range c.Channels {
			// One of the two kinds of group is trivial, so o/run is the index of the other.
			image, first := n, int64(0)
			if c.BatchGroups > 1 {
				image = o/run*c.Batch + n
			} else {
				first = o / run * c.InChannels
			}
			positions(c, func(d kern.ConvDim) int64 { return d.Out }, func(p []int64) {
				at := n*c.OutBatch + o*c.OutChannel
				for i, d := range c.Spatial {
					at += p[i] * d.StrideOut
				}
				var sum, acc T
				for ch := range c.InChannels {
					if ch%c.Segment == 0 {
						sum, acc = join(ch/c.Segment, sum, acc), 0
					}
					positions(c, func(d kern.ConvDim) int64 { return d.Kernel }, func(k []int64) {
						i := image*c.InBatch + (first+ch)*c.InChannel
						j := o*c.KerOut + ch*c.KerIn
						for s, d := range c.Spatial {
							x := p[s]*d.Stride + k[s]*d.KernelDilation - d.PadLo
							if x < 0 || x%d.InDilation != 0 || x/d.InDilation >= d.In {
								return
							}
							i += x / d.InDilation * d.StrideIn
							if d.Reverse {
								j += (d.Kernel - 1 - k[s]) * d.StrideKer
							} else {
								j += k[s] * d.StrideKer
							}
						}
						acc = fma(in[i], ker[j], acc)
					})
				}
				out[at] = join((c.InChannels+c.Segment-1)/c.Segment, sum, acc)
			})
		}
	}
	return out
}

// join is the sum of n chains, given that of the first n−1 and the last.
func join[T float32 | float64](n int64, sum, last T) T {
	if n <= 1 {
		return last
	}
	return sum + last
}

// positions calls f for every index of the spatial dimensions, row-major.
func positions(c *kern.Conv, size func(kern.ConvDim) int64, f func([]int64)) {
	p := make([]int64, len(c.Spatial))
	for {
		f(p)
		i := len(p) - 1
		for ; i >= 0; i-- {
			if p[i]++; p[i] < size(c.Spatial[i]) {
				break
			}
			p[i] = 0
		}
		if i < 0 {
			return
		}
	}
}

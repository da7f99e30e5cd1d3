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

// tap is a kernel position that exists for an output position, by what it adds to
// the offsets in the input and the kernel.
type tap struct{ in, ker int64 }

func conv[T float32 | float64](c *kern.Conv, in, ker []T, fma func(a, b, acc T) T) []T {
	out := make([]T, c.LenOut)
	run := c.Channels / (c.Groups * c.BatchGroups) // output channels of a group
	positions(c, func(d kern.ConvDim) int64 { return d.Out }, func(p []int64) {
		taps := tapsOf(c, p)
		place := int64(0)
		for i, d := range c.Spatial {
			place += p[i] * d.StrideOut
		}
		for n := range c.Batch {
			for o := range c.Channels {
				// One of the two kinds of group is trivial, so o/run is the index of the other.
				image, first := n, int64(0)
				if c.BatchGroups > 1 {
					image = o/run*c.Batch + n
				} else {
					first = o / run * c.InChannels
				}
				var sum, acc T
				for ch := range c.InChannels {
					if ch%c.Segment == 0 {
						sum, acc = join(ch/c.Segment, sum, acc), 0
					}
					x := in[image*c.InBatch+(first+ch)*c.InChannel:]
					w := ker[o*c.KerOut+ch*c.KerIn:]
					for _, t := range taps {
						acc = fma(x[t.in], w[t.ker], acc)
					}
				}
				chains := (c.InChannels + max(1, c.Segment) - 1) / max(1, c.Segment)
				out[place+n*c.OutBatch+o*c.OutChannel] = join(chains, sum, acc)
			}
		}
	})
	return out
}

// tapsOf lists the kernel positions that exist for output position p, in order.
func tapsOf(c *kern.Conv, p []int64) (taps []tap) {
	positions(c, func(d kern.ConvDim) int64 { return d.Kernel }, func(k []int64) {
		var t tap
		for s, d := range c.Spatial {
			x := p[s]*d.Stride + k[s]*d.KernelDilation - d.PadLo
			if x < 0 || x%d.InDilation != 0 || x/d.InDilation >= d.In {
				return
			}
			t.in += x / d.InDilation * d.StrideIn
			if d.Reverse {
				t.ker += (d.Kernel - 1 - k[s]) * d.StrideKer
			} else {
				t.ker += k[s] * d.StrideKer
			}
		}
		taps = append(taps, t)
	})
	return taps
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
	for _, d := range c.Spatial {
		if size(d) == 0 {
			return
		}
	}
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

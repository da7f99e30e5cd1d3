package cpu

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"github.com/llir/llvm/ir"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/ops/convref"
)

// convDense is a 2-D convolution in NCHW and OIHW: n images of c channels and
// h × w, o output channels, a k × k kernel.
func convDense(n, c, h, w, o, k, stride, pad, groups int64) *kern.Conv {
	ho, wo := (h+2*pad-k)/stride+1, (w+2*pad-k)/stride+1
	cg := c / groups
	dim := func(in, out, si, sk, so int64) kern.ConvDim {
		return kern.ConvDim{In: in, Kernel: k, Out: out, Stride: stride, InDilation: 1, KernelDilation: 1, PadLo: pad,
			StrideIn: si, StrideKer: sk, StrideOut: so}
	}
	return &kern.Conv{DType: dtype.F32, Batch: n, Channels: o, InChannels: cg, Groups: groups, BatchGroups: 1, Segment: cg,
		Spatial: []kern.ConvDim{dim(h, ho, w, k, wo), dim(w, wo, 1, 1, 1)},
		InBatch: c * h * w, InChannel: h * w, KerOut: cg * k * k, KerIn: k * k, OutBatch: o * ho * wo, OutChannel: ho * wo,
		LenIn: n * c * h * w, LenKer: o * cg * k * k, LenOut: n * o * ho * wo}
}

// convLast is convDense, of one group, in NHWC and HWIO.
func convLast(n, c, h, w, o, k, stride, pad int64) *kern.Conv {
	x := convDense(n, c, h, w, o, k, stride, pad, 1)
	y, z := &x.Spatial[0], &x.Spatial[1]
	y.StrideIn, y.StrideKer, y.StrideOut = w*c, k*c*o, z.Out*o
	z.StrideIn, z.StrideKer, z.StrideOut = c, c*o, o
	x.InChannel, x.KerOut, x.KerIn, x.OutChannel = 1, 1, o, 1
	return x
}

// convForInput is the gradient of c for its input, c having one group or being
// depthwise: the kernel reversed, the roles of its channels exchanged, inputs dilated by
// the stride.
func convForInput(c *kern.Conv) *kern.Conv {
	g := *c
	if c.Groups > 1 {
		g.Spatial = nil
		for _, d := range convForInput(convUngrouped(c)).Spatial {
			g.Spatial = append(g.Spatial, d)
		}
		g.InBatch, g.InChannel, g.OutBatch, g.OutChannel = c.OutBatch, c.OutChannel, c.InBatch, c.InChannel
		g.LenIn, g.LenOut = c.LenOut, c.LenIn
		return &g
	}
	g.Channels, g.InChannels, g.Segment = c.InChannels, c.Channels, c.Channels
	g.InBatch, g.InChannel, g.OutBatch, g.OutChannel = c.OutBatch, c.OutChannel, c.InBatch, c.InChannel
	g.KerOut, g.KerIn = c.KerIn, c.KerOut
	g.LenIn, g.LenOut = c.LenOut, c.LenIn
	g.Spatial = nil
	for _, d := range c.Spatial {
		r := d
		r.In, r.Out, r.StrideIn, r.StrideOut = d.Out, d.In, d.StrideOut, d.StrideIn
		r.Stride, r.InDilation, r.Reverse = 1, d.Stride, true
		r.PadLo = (d.Kernel-1)*d.KernelDilation - d.PadLo
		g.Spatial = append(g.Spatial, r)
	}
	return &g
}

// convUngrouped is the first group of c.
func convUngrouped(c *kern.Conv) *kern.Conv {
	g := *c
	g.Channels, g.Groups = c.Channels/c.Groups, 1
	return &g
}

// convForKernel is the gradient of c for its kernel, c having one group or being
// depthwise: images take the part of channels, the gradient of the output that of the
// kernel; feature groups become batch groups.
func convForKernel(c *kern.Conv) *kern.Conv {
	g := *c
	if c.Groups > 1 {
		g = *convForKernel(convUngrouped(c))
		g.Channels, g.BatchGroups = c.Channels, c.Groups
		return &g
	}
	g.Batch, g.InChannels, g.Segment = c.InChannels, c.Batch, c.Batch
	g.InBatch, g.InChannel = c.InChannel, c.InBatch
	g.KerOut, g.KerIn = c.OutChannel, c.OutBatch
	g.OutBatch, g.OutChannel = c.KerIn, c.KerOut
	g.LenKer, g.LenOut = c.LenOut, c.LenKer
	g.Spatial = nil
	for _, d := range c.Spatial {
		r := d
		r.Kernel, r.Out, r.StrideKer, r.StrideOut = d.Out, d.Kernel, d.StrideOut, d.StrideKer
		r.Stride, r.KernelDilation = d.KernelDilation, d.Stride
		g.Spatial = append(g.Spatial, r)
	}
	return &g
}

// convRandom is a convolution of odd sizes: any rank, layout, dilation and group.
func convRandom(r *rand.Rand) *kern.Conv {
	for {
		n := func(most int64) int64 { return 1 + r.Int64N(most) }
		c := &kern.Conv{DType: dtype.F32, Batch: n(5), InChannels: n(7), Groups: 1, BatchGroups: 1}
		og := n(40)
		if r.IntN(3) == 0 {
			og = 8 * n(5) // whole registers
		}
		switch r.IntN(4) {
		case 0:
			c.Groups = n(3)
		case 1:
			c.BatchGroups = n(3)
		case 2:
			og = 1
			c.Groups = n(20)
			if r.IntN(3) == 0 {
				c.Groups, c.BatchGroups = 1, c.Groups
			}
		}
		c.Segment = n(c.InChannels)
		if r.IntN(2) == 0 {
			c.Segment = c.InChannels
		}
		c.Channels = og * c.Groups * c.BatchGroups
		rank := r.IntN(4)
		var in, ker, out []*int64 // strides and sizes, outermost first
		size := map[*int64]int64{}
		add := func(list *[]*int64, p *int64, n int64) { *list = append(*list, p); size[p] = n }
		add(&in, &c.InBatch, c.Batch*c.BatchGroups)
		add(&in, &c.InChannel, c.InChannels*c.Groups)
		add(&ker, &c.KerOut, c.Channels)
		add(&ker, &c.KerIn, c.InChannels)
		add(&out, &c.OutBatch, c.Batch)
		add(&out, &c.OutChannel, c.Channels)
		c.Spatial = make([]kern.ConvDim, rank)
		ok := true
		for i := range c.Spatial {
			d := &c.Spatial[i]
			*d = kern.ConvDim{In: n(14), Kernel: n(4), Stride: n(3), InDilation: 1, KernelDilation: 1, PadLo: r.Int64N(5) - 1, Reverse: r.IntN(3) == 0}
			if r.IntN(3) == 0 {
				d.InDilation = n(3)
			}
			if r.IntN(3) == 0 {
				d.KernelDilation = n(3)
			}
			if r.IntN(8) == 0 {
				d.Kernel, d.In = n(30), n(40)
			}
			span := (d.In-1)*d.InDilation + 1 + d.PadLo + r.Int64N(5) - 1 - (d.Kernel-1)*d.KernelDilation - 1
			d.Out = span/d.Stride + 1
			ok = ok && span >= 0 && d.Out >= 1
			add(&in, &d.StrideIn, d.In)
			add(&ker, &d.StrideKer, d.Kernel)
			add(&out, &d.StrideOut, d.Out)
		}
		if !ok {
			continue
		}
		lay := func(list []*int64) int64 {
			if r.IntN(2) == 0 {
				r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			}
			total := int64(1)
			for i := len(list) - 1; i >= 0; i-- {
				*list[i] = total
				total *= size[list[i]]
			}
			return total
		}
		c.LenIn, c.LenKer, c.LenOut = lay(in), lay(ker), lay(out)
		return c
	}
}

func convCases() []*kern.Conv {
	cs := []*kern.Conv{
		convDense(2, 3, 17, 19, 40, 3, 1, 1, 1),
		convDense(3, 33, 14, 14, 32, 1, 1, 0, 1),
		convDense(1, 8, 23, 40, 16, 5, 2, 2, 2),
		convDense(9, 4, 7, 7, 64, 3, 1, 1, 1),
		convDense(1, 1, 3, 1500, 17, 3, 1, 1, 1),
		convDense(2, 6, 9, 9, 6, 3, 1, 1, 6),
		convDense(2, 5, 10, 130, 5, 3, 1, 1, 5),
		convDense(1, 6, 12, 141, 6, 5, 2, 2, 3),
		convDense(2, 7, 11, 70, 3, 4, 1, 2, 1),
		// Channels of one register, long rows, much padding, groups.
		convDense(2, 16, 9, 32, 16, 3, 1, 1, 1),
		convDense(1, 2, 3, 400, 15, 3, 1, 150, 1),
		convDense(1, 6, 7, 131, 30, 3, 2, 1, 3),
	}
	for _, c := range []*kern.Conv{convDense(2, 16, 6, 35, 16, 3, 1, 1, 1), convDense(2, 5, 15, 16, 18, 3, 2, 1, 1), convDense(3, 20, 12, 12, 35, 3, 1, 1, 1), convDense(1, 2, 60, 60, 3, 4, 2, 1, 1)} {
		cs = append(cs, convForInput(c), convForKernel(c))
	}
	for _, c := range []*kern.Conv{convDense(2, 21, 11, 13, 21, 3, 1, 1, 21), convDense(3, 9, 12, 30, 9, 4, 2, 1, 9), convDense(1, 16, 5, 9, 16, 7, 1, 3, 16), convDense(1, 9, 9, 9, 9, 15, 1, 7, 9), convDense(1, 9, 8, 20, 9, 5, 2, 2, 9)} {
		cut := convForKernel(c)
		cut.Segment = (cut.InChannels + 1) / 2
		cs = append(cs, convForInput(c), cut)
	}
	// Channels last: of one register and of two, in the result itself or not, in a kernel that is packed, turned, or read
	// where it lies; gradients for the kernel in two chains.
	for _, c := range []*kern.Conv{convLast(2, 4, 9, 32, 16, 3, 1, 1), convLast(3, 16, 7, 11, 32, 3, 2, 1), convLast(3, 3, 5, 40, 20, 4, 1, 2)} {
		dw := convForKernel(c)
		dw.Segment = (dw.InChannels + 1) / 2
		cs = append(cs, c, convForInput(c), dw)
	}
	turned := convLast(1, 16, 3, 9, 16, 2, 1, 0)
	turned.Spatial[0].Reverse, turned.Spatial[1].Reverse = true, true
	cs = append(cs, turned)
	// Large kernels of channels last, cut along rows: read where they lie, and packed.
	cs = append(cs, convLast(1, 2, 47, 60, 16, 45, 1, 0), convLast(1, 2, 56, 48, 16, 45, 1, 0))
	// Long kernels whose taps differ from column to column; many columns between dilated inputs.
	for _, x := range []struct{ in, kernel, out, stride, inDilation, kernelDilation, pad int64 }{
		{40, 60, 20, 1, 2, 1, 30}, {50, 41, 19, 3, 4, 3, 25}, {30, 40, 50, 1, 1, 1, 35}, {3000, 4, 4500, 2, 3, 1, 2},
	} {
		cs = append(cs, &kern.Conv{DType: dtype.F32, Batch: 1, Channels: 9, InChannels: 2, Groups: 1, BatchGroups: 1, Segment: 2,
			InBatch: 2 * x.in, InChannel: x.in, KerOut: 2 * x.kernel, KerIn: x.kernel, OutBatch: 9 * x.out, OutChannel: x.out,
			LenIn: 2 * x.in, LenKer: 18 * x.kernel, LenOut: 9 * x.out,
			Spatial: []kern.ConvDim{{In: x.in, Kernel: x.kernel, Out: x.out, Stride: x.stride, InDilation: x.inDilation, KernelDilation: x.kernelDilation,
				PadLo: x.pad, StrideIn: 1, StrideKer: 1, StrideOut: 1}}})
	}
	narrow := convDense(2, 7, 6, 40, 2, 3, 1, 1, 1)
	narrow.Segment = 3
	cs = append(cs, narrow)
	// Kernels of which a chunk holds a part: cut along rows, along planes, and along the only dimension.
	dw := convForKernel(convDense(2, 3, 50, 70, 20, 3, 1, 1, 1))
	dw.Segment = 1
	planes := &kern.Conv{DType: dtype.F32, Batch: 2, Channels: 20, InChannels: 2, Groups: 1, BatchGroups: 1, Segment: 2,
		InBatch: 2 * 23 * 22 * 20, InChannel: 23 * 22 * 20, KerOut: 2 * 20 * 20 * 5, KerIn: 20 * 20 * 5, OutBatch: 20 * 4 * 3 * 2, OutChannel: 4 * 3 * 2,
		LenIn: 4 * 23 * 22 * 20, LenKer: 20 * 2 * 20 * 20 * 5, LenOut: 2 * 20 * 4 * 3 * 2}
	for i, n := range []int64{20, 20, 5} {
		planes.Spatial = append(planes.Spatial, kern.ConvDim{In: []int64{23, 22, 20}[i], Kernel: n, Out: int64(4 - i), Stride: int64(i + 1),
			InDilation: 1, KernelDilation: 1, StrideIn: []int64{440, 20, 1}[i], StrideKer: []int64{100, 5, 1}[i], StrideOut: []int64{6, 2, 1}[i], Reverse: true})
	}
	long := &kern.Conv{DType: dtype.F32, Batch: 15, Channels: 5, InChannels: 2, Groups: 1, BatchGroups: 1, Segment: 2,
		InBatch: 4000, InChannel: 2000, KerOut: 3600, KerIn: 1800, OutBatch: 15, OutChannel: 3, LenIn: 15 * 4000, LenKer: 5 * 3600, LenOut: 15 * 15,
		Spatial: []kern.ConvDim{{In: 2000, Kernel: 1800, Out: 3, Stride: 60, InDilation: 1, KernelDilation: 1, PadLo: 10, StrideIn: 1, StrideKer: 1, StrideOut: 1}}}
	empty := convDense(2, 3, 4, 5, 6, 3, 1, 1, 1)
	empty.InChannels, empty.LenIn, empty.LenKer = 0, 0, 0
	none := convDense(2, 3, 4, 5, 6, 3, 1, 1, 1)
	none.Batch, none.LenIn, none.LenOut = 0, 0, 0
	cs = append(cs, dw, planes, long, empty, none)
	r := rand.New(rand.NewPCG(8, 8))
	for range convDrawn {
		cs = append(cs, convRandom(r))
	}
	return cs
}

// convDrawn is how many of the cases are drawn at random. By default each is tried on one of the targets.
const convDrawn = 14

func TestConvEqualsReference(t *testing.T) {
	cases := convCases()
	type data struct{ in, ker, want []float32 }
	ds := make([]data, len(cases))
	for i, c := range cases {
		c.Name = fmt.Sprintf("c%d", i)
		require.NoError(t, c.Check())
		r := rand.New(rand.NewPCG(9, uint64(i)))
		d := data{in: attentionRandom(r, c.LenIn), ker: attentionRandom(r, c.LenKer)}
		if i%4 == 3 { // what would tell a zero that is added from a tap that is left out
			for j := range d.ker {
				d.ker[j] *= 0x1p-140
			}
		}
		d.want = convref.Conv32(c, d.in, d.ker)
		ds[i] = d
	}
	for _, target := range []Target{V3, V4} {
		t.Run([]string{"v3", "v4"}[target], func(t *testing.T) {
			m := ir.NewModule()
			tiles := make([]int64, len(cases))
			tried := func(i int) bool {
				return i < len(cases)-convDrawn || Target(i%2) == target || emitLong()
			}
			for i, c := range cases {
				if !tried(i) {
					continue
				}
				ls, err := EmitConv(m, c, target)
				require.NoError(t, err)
				require.Len(t, ls, 1)
				tiles[i] = ls[0].Tiles
			}
			lib, _ := attentionLib(t, m)
			for i, c := range cases {
				if !tried(i) {
					continue
				}
				t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
					r := rand.New(rand.NewPCG(10, uint64(i)))
					out := attentionAligned[float32](c.LenOut)
					k := attentionSymbol(t, lib, c.Name)
					attentionRun(k, attentionCuts(r, tiles[i]), attentionPointer(ds[i].in), attentionPointer(ds[i].ker), attentionPointer(out))
					attentionEqual(t, "out", ds[i].want, out)
					if t.Failed() {
						t.Logf("%+v", *c)
					}
				})
			}
		})
	}
}

func TestConvRefusals(t *testing.T) {
	for name, change := range map[string]func(c *kern.Conv){
		"family":    func(c *kern.Conv) { c.DType = dtype.F64 },
		"chains of": func(c *kern.Conv) { c.Segment = 0 },
		"negative":  func(c *kern.Conv) { c.Batch = -1 },
		"at once":   func(c *kern.Conv) { c.Groups, c.BatchGroups = 2, 2 },
		"multiple":  func(c *kern.Conv) { c.Groups = 3 },
		"dilations": func(c *kern.Conv) { c.Spatial[1].Stride = 0 },
		"outside":   func(c *kern.Conv) { c.LenIn-- },
		"too large": func(c *kern.Conv) {
			c.Spatial[1].Kernel, c.Spatial[1].StrideKer, c.LenKer = 20000, 1, 1<<40
		},
	} {
		c := convDense(2, 4, 9, 9, 8, 3, 1, 1, 1)
		change(c)
		_, err := EmitConv(ir.NewModule(), c, V4)
		require.ErrorContains(t, err, name)
	}
}

func BenchmarkConv(b *testing.B) {
	type row struct {
		name string
		c    *kern.Conv
	}
	var rows []row
	for _, x := range []row{
		{"c64_56x56_k3", convDense(4, 64, 56, 56, 64, 3, 1, 1, 1)},
		{"c256_14x14_k3", convDense(8, 256, 14, 14, 256, 3, 1, 1, 1)},
		{"c128_s2_k3", convDense(4, 128, 28, 28, 128, 3, 2, 1, 1)},
		{"c256_1x1", convDense(4, 256, 28, 28, 128, 1, 1, 0, 1)},
		{"depthwise", convDense(4, 64, 56, 56, 64, 3, 1, 1, 64)},
		{"depthwise_s2", convDense(4, 64, 112, 112, 64, 3, 2, 1, 64)},
		{"stem7x7", convDense(4, 3, 112, 112, 64, 7, 2, 3, 1)},
		{"last_c16_32x32_k3", convLast(32, 16, 32, 32, 16, 3, 1, 1)},
		{"last_c64_8x8_k3", convLast(32, 64, 8, 8, 64, 3, 1, 1)},
	} {
		rows = append(rows, x, row{x.name + "_dx", convForInput(x.c)}, row{x.name + "_dw", convForKernel(x.c)})
	}
	for _, target := range []Target{V3, V4} {
		for _, x := range rows {
			c := x.c
			c.Name = "k"
			m := ir.NewModule()
			ls, err := EmitConv(m, c, target)
			require.NoError(b, err)
			lib, took := attentionLib(b, m)
			k := attentionSymbol(b, lib, "k")
			r := rand.New(rand.NewPCG(1, 1))
			in, ker, out := attentionRandom(r, c.LenIn), attentionRandom(r, c.LenKer), attentionAligned[float32](c.LenOut)
			args := []unsafe.Pointer{attentionPointer(in), attentionPointer(ker), attentionPointer(out)}
			for _, threads := range []int64{1, 2} {
				b.Run(fmt.Sprintf("%s/v%d/threads=%d", x.name, 3+target, threads), func(b *testing.B) {
					scratch := make([][]uint32, threads)
					for i := range scratch {
						scratch[i] = attentionAligned[uint32](1 << 18)
					}
					n := ls[0].Tiles
					for range b.N {
						var wg sync.WaitGroup
						for w := range threads {
							wg.Go(func() {
								k(unsafe.Pointer(&args[0]), w*n/threads, (w+1)*n/threads, unsafe.Pointer(&scratch[w][0]))
							})
						}
						wg.Wait()
					}
					b.ReportMetric(took.Seconds(), "compile-s")
					b.ReportMetric(convFlops(c)/1e9/(b.Elapsed().Seconds()/float64(b.N)), "GFLOP/s")
				})
			}
		}
	}
}

// convFlops counts the taps that exist.
func convFlops(c *kern.Conv) float64 {
	n := float64(2 * c.Batch * c.Channels * c.InChannels)
	for _, d := range c.Spatial {
		taps := int64(0)
		for p := range d.Out {
			for k := range d.Kernel {
				x := p*d.Stride + k*d.KernelDilation - d.PadLo
				if x >= 0 && x%d.InDilation == 0 && x/d.InDilation < d.In {
					taps++
				}
			}
		}
		n *= float64(taps)
	}
	return n
}

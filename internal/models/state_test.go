package models

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
	"reprise/runtime"
)

// everyState is a model with state of each kind, in f16 behind a batch norm in f32. Its loss is multiplied by
// the greatest of input "gain", so that a step can be made to overflow.
func everyState() nn.Model {
	return nn.Model{Name: "state", DType: dtype.F16, Loss: func(s *nn.Scope) *nn.Tensor {
		x, gain := s.Input("x", dtype.F32, []int64{8, 6}, nn.Normal01), s.Input("gain", dtype.F32, []int64{8}, nn.Uniform01)
		h := s.BatchNorm("bn", x, 0.25)
		s.Metric("first", s.Reshape(s.Slice(s.Slice(x, 0, 0, 1), 1, 0, 1)))
		s.In("seen").Count("rows", s.Int(dtype.I64, x.Type.Shape[0]))
		s.In("seen").After(func() { s.In("seen").Count("steps", s.Int(dtype.I32, 1)) })
		h = s.Dropout(s.Gelu(s.Linear("fc", s.Cast(h, s.DType()), 20)), 0.2)
		y := s.Cast(s.Linear("out", h, 3), dtype.F32)
		return s.Mul(s.MeanAll(s.Square(y)), s.Op("reduce", []*nn.Tensor{gain}, ir.A("kind", "max"), ir.A("axes", []int64{0})))
	}}
}

func f32(t *testing.T, i *runtime.Instance, name string) []float32 {
	t.Helper()
	b, err := i.Read(name)
	require.NoError(t, err)
	x := make([]float32, len(b)/4)
	for k := range x {
		x[k] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*k:]))
	}
	return x
}

func integer(t *testing.T, i *runtime.Instance, name string) int64 {
	t.Helper()
	b, err := i.Read(name)
	require.NoError(t, err)
	if len(b) == 4 {
		return int64(int32(binary.LittleEndian.Uint32(b)))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// micros are numbers of micro-batches.
func micros() []int {
	if testprog.Long() {
		return []int{1, 2, 4}
	}
	return []int{2}
}

// State changes once: counters by what there was to count, running statistics once for each micro-batch in
// order, the moving average, the loss scale and what is said to be so once a step. Steps that overflow change
// neither parameters nor the optimizer's state. All of this at both ends of the budgets, for one and for
// several micro-batches.
func TestStateChangesOnce(t *testing.T) {
	for _, micro := range micros() {
		t.Run(fmt.Sprintf("micro=%d", micro), func(t *testing.T) {
			t.Parallel()
			m := trained(t, everyState(), nn.Recipe{Optimizer: nn.DefaultAdamW(), Schedule: nn.Constant{LR: 0.01}, Clip: 1, Micro: micro,
				EMA: 0.75, Scale: nn.LossScale{First: 8, Every: 2}})
			programs := []*testprog.Program{compiled(t, m, []string{v3, v4}[micro%2], -1)}
			if micro == 2 {
				programs = append(programs, compiled(t, m, v4, 0))
			}
			for k, p := range programs {
				ref, i := testprog.Interpret(t, m), start(t, p, 1+k)
				x, gain := tensor.New(dtype.F32, 8, 6), tensor.New(dtype.F32, 8)
				mean := make([]float64, 6)
				scale, good, taken := 8.0, 0, int64(0)
				for s, bad := range []bool{false, false, true, false, false, false} {
					for e := range x.F32() {
						x.F32()[e] = float32((e*7+s*5)%11) - 5
					}
					for e := range gain.F32() {
						gain.F32()[e] = map[bool]float32{false: 1, true: 3e38}[bad]
					}
					before := map[string][]float32{}
					kept := []string{"fc.w/master", "fc.w/m", "fc.w/v", "fc.w/ema", "out.b/master", "out.b/ema"}
					for _, name := range kept {
						before[name] = f32(t, i, name)
					}
					in := testprog.Feed(t, i, m, s, inputs{"x": x, "gain": gain})
					require.NoError(t, i.Step())
					testprog.Same(t, m, ref.Step(t, s, in), testprog.Results(t, i, m), fmt.Sprintf("step %d", s))

					rows := 8 / micro
					for b := range micro {
						for c := range mean {
							sum := 0.0
							for r := range rows {
								sum += float64(x.F32()[(b*rows+r)*6+c])
							}
							mean[c] = 0.75*mean[c] + 0.25*sum/float64(rows)
						}
					}
					for c, v := range f32(t, i, "bn.mean") {
						require.InDelta(t, mean[c], v, 1e-5, "running mean")
					}
					first := 0.0
					for b := range micro {
						first += float64(x.F32()[b*rows*6]) / float64(micro)
					}
					require.InDelta(t, first, f32(t, i, "first")[0], 1e-6, "a metric is the mean over the micro-batches")
					require.Equal(t, int64((s+1)*micro), integer(t, i, "bn.batches"))
					require.Equal(t, int64((s+1)*8), integer(t, i, "seen.rows"), "tokens, not twice the tokens")
					require.Equal(t, int64(s+1), integer(t, i, "seen.steps"))

					if bad {
						scale, good = scale/2, 0
					} else {
						taken++
						if good++; good == 2 {
							scale, good = scale*2, 0
						}
					}
					require.Equal(t, float32(scale), f32(t, i, "loss_scale.scale")[0])
					require.Equal(t, int64(good), integer(t, i, "loss_scale.good"))
					require.Equal(t, taken, integer(t, i, "loss_scale.taken"))
					for _, name := range kept {
						if bad {
							require.Equal(t, before[name], f32(t, i, name), "%s in a step that overflows", name)
						} else {
							require.NotEqual(t, before[name], f32(t, i, name), "%s", name)
						}
					}
					master, ema := f32(t, i, "fc.w/master"), f32(t, i, "fc.w/ema")
					for e, old := range before["fc.w/ema"] {
						if !bad {
							require.InDelta(t, 0.75*float64(old)+0.25*float64(master[e]), ema[e], 1e-6)
						}
					}
				}
			}
		})
	}
}

// Counters of a mixture count each token once, and its biases move once a step by what the whole step counted,
// however many micro-batches it has.
func TestTokenCounters(t *testing.T) {
	programs := []*testprog.Program{seed(t, llama4, v4, 0), seed(t, llama4, v3, -1)} // in two micro-batches
	if testprog.Long() {
		for _, micro := range []int{1, 4} {
			programs = append(programs, compiled(t, builtin(t, strings.Replace(llama4, "micro=2", fmt.Sprint("micro=", micro), 1), true), v4, -1))
		}
	}
	for k, p := range programs {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			i := start(t, p, 2)
			for layer := range 2 {
				require.Equal(t, make([]float32, 4), f32(t, i, fmt.Sprintf("layers.%d.moe.expert_bias", layer)))
			}
			counts, bias := make([]int64, 8), make([]float64, 8)
			for s := range 3 {
				testprog.Feed(t, i, p.Model, s, book(p.Model.Module.Func("step"), s))
				require.NoError(t, i.Step())
				for layer := range 2 {
					b, err := i.Read(fmt.Sprintf("layers.%d.moe.tokens_per_expert", layer))
					require.NoError(t, err)
					sum, now, step := int64(0), make([]int64, 4), make([]float64, 4)
					mean := 0.0
					for e := range now {
						now[e] = int64(binary.LittleEndian.Uint32(b[4*e:]))
						sum += now[e]
						switch got := now[e] - counts[4*layer+e]; {
						case got < 60:
							step[e] = 0.01
						case got > 60:
							step[e] = -0.01
						}
						mean += step[e] / 4
					}
					require.Equal(t, int64(240*(s+1)), sum, "each token counts once")
					copy(counts[4*layer:], now)
					for e, v := range f32(t, i, fmt.Sprintf("layers.%d.moe.expert_bias", layer)) {
						bias[4*layer+e] += step[e] - mean
						require.InDelta(t, bias[4*layer+e], v, 1e-6, "layer %d, expert %d, step %d", layer, e, s)
					}
				}
			}
		})
	}
}

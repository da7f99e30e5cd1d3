package nn_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes"
)

// trainer runs a training module in the interpreter, on data that it is given.
type trainer struct {
	t     *testing.T
	step  *ir.Func
	state map[string]*tensor.Tensor
	done  int64
}

func newTrainer(t *testing.T, m *ir.Module) *trainer {
	t.Helper()
	require.NoError(t, passes.Run(m, ops.Table(), passes.Options{Only: []string{"canon", "dce", "cse", "autodiff"}}))
	init := m.Func("init")
	state, err := interp.RunNamed(init, map[string]*tensor.Tensor{"key": tensor.Key(7, math.MaxUint32, 0)}, interp.Options{})
	require.NoError(t, err)
	return &trainer{t: t, step: m.Func("step"), state: state}
}

// run runs a step and returns its results that are not state.
func (r *trainer) run(inputs map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	r.t.Helper()
	args := map[string]*tensor.Tensor{"key": tensor.Key(7, uint32(r.done), 0), "step": tensor.Of([]int64{r.done})}
	for k, v := range r.state {
		args[k] = v
	}
	for k, v := range inputs {
		args[k] = v
	}
	out, err := interp.RunNamed(r.step, args, interp.Options{})
	require.NoError(r.t, err)
	for name := range r.state {
		if v := out[name]; v != nil {
			r.state[name] = v
			delete(out, name)
		}
	}
	r.done++
	return out
}

// data is one fixed batch for the inputs of a step.
func data(f *ir.Func) map[string]*tensor.Tensor {
	in := map[string]*tensor.Tensor{}
	for _, p := range f.Body.Params {
		if p.Role() != ir.RoleInput {
			continue
		}
		x := tensor.New(p.Type.DType, p.Type.Shape...)
		shift := 0
		if p.Name == "targets" {
			shift = 1
		}
		for i := range x.Len() {
			if p.Type.DType == dtype.F32 {
				x.F32()[i] = float32(math.Sin(float64(i)*1.7 + float64(i%13)))
			} else {
				x.SetBits(i, uint64((i+int64(shift))*7%11%4))
			}
		}
		in[p.Name] = x
	}
	return in
}

// Every builtin model learns a batch by heart.
func TestLossFalls(t *testing.T) {
	for _, spec := range tiny {
		name, _, _ := strings.Cut(spec, ",")
		t.Run(name, func(t *testing.T) {
			m, err := use(t, spec+",lr=0.02,warmup=2,schedule=constant").Train()
			require.NoError(t, err)
			r := newTrainer(t, m)
			in := data(r.step)
			first := r.run(in)["loss"].F32()[0]
			var last float32
			for range 14 {
				last = r.run(in)["loss"].F32()[0]
			}
			t.Logf("loss %v to %v", first, last)
			require.Less(t, last, first*0.9)
			for name, v := range r.state {
				switch {
				case strings.HasSuffix(name, ".batches"):
					require.Equal(t, int64(15), v.I64()[0], "a batch counts once")
				case strings.HasSuffix(name, ".tokens"), strings.HasSuffix(name, ".tokens_per_expert"):
					sum, top := int32(0), int32(2)
					for _, n := range v.I32() {
						sum += n
					}
					if strings.HasSuffix(name, "_per_expert") {
						top = 1
					}
					require.Equal(t, 15*2*8*top, sum, "a pair of token and expert counts once")
				}
			}
		})
	}
}

// The weights of the inference module are those of the training module, by name and type.
func TestInferenceHasTheSameWeights(t *testing.T) {
	for _, spec := range tiny {
		u := use(t, spec)
		a, err := u.Train()
		require.NoError(t, err)
		b, err := u.Infer()
		require.NoError(t, err)
		for _, p := range b.Func("step").Body.Params {
			if p.IsState() {
				q := a.Func("step").Param(p.Name)
				require.NotNil(t, q, p.Name)
				require.True(t, p.Type.Equal(q.Type), p.Name)
			}
		}
		require.Zero(t, b.Func("step").Uses()[b.Func("step").Param("key").ID], "nothing is random in inference")
	}
}

// Logits of one position are those of that position among all, bit for bit.
func TestPredictNext(t *testing.T) {
	for _, spec := range tiny {
		name, _, _ := strings.Cut(spec, ",")
		if !strings.Contains(spec, "vocab=") {
			continue
		}
		all, err := use(t, spec).Infer()
		require.NoError(t, err)
		next, err := use(t, spec+",predict=next").Infer()
		require.NoError(t, err)
		key := tensor.Key(7, math.MaxUint32, 0)
		state, err := interp.RunNamed(all.Func("init"), map[string]*tensor.Tensor{"key": key}, interp.Options{})
		require.NoError(t, err)
		state["key"] = key
		for k, v := range data(all.Func("step")) {
			state[k] = v
		}
		a, err := interp.RunNamed(all.Func("step"), state, interp.Options{})
		require.NoError(t, err)
		const at = 2
		state["position"] = tensor.Of([]int32{at})
		b, err := interp.RunNamed(next.Func("step"), state, interp.Options{})
		require.NoError(t, err)
		x, y := a["logits"], b["logits"]
		B, T, V := x.Shape[0], x.Shape[1], x.Shape[2]
		require.Equal(t, []int64{B, V}, y.Shape)
		for i := range B {
			require.Equal(t, x.F32()[(i*T+at)*V:(i*T+at+1)*V], y.F32()[i*V:(i+1)*V], name)
		}
	}
}

// probe is a model whose gradient is known: loss = mean over rows of w·x, so dw = mean x.
func probe(rows int64) nn.Model {
	return nn.Model{Name: "probe", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{rows, 2})
		w := s.Param("w", []int64{2}, nn.Zeros)
		return s.Scale(s.MeanAll(s.Mul(x, w)), 2)
	}}
}

// plainStep is p − g·lr, without anything else.
type plainStep struct{}

func (plainStep) Start(_ *nn.Scope, _, lr *nn.Tensor) func(w *nn.Weight) *nn.Tensor {
	return func(w *nn.Weight) *nn.Tensor { return w.Sub(w.Param, w.Mul(w.Grad, lr)) }
}

func TestClipping(t *testing.T) {
	for _, c := range []struct{ clip, want float64 }{{0, 5}, {10, 5}, {1, 1}} {
		m, err := nn.Train(probe(2), nn.Recipe{Optimizer: plainStep{}, Schedule: nn.Constant{LR: 1}, Clip: c.clip})
		require.NoError(t, err)
		r := newTrainer(t, m)
		r.run(map[string]*tensor.Tensor{"x": tensor.Of([]float32{3, 4, 3, 4}, 2, 2)}) // gradient (3, 4): norm 5
		w := r.state["w"].F32()
		require.InDelta(t, c.want, math.Hypot(float64(w[0]), float64(w[1])), 1e-5)
		require.InDelta(t, 0.75, w[0]/w[1], 1e-6, "the direction stays")
	}
}

// Micro-batches add up to the gradient of the whole batch.
func TestMicroBatches(t *testing.T) {
	for _, micro := range []int{1, 2, 4} {
		m, err := nn.Train(probe(4), nn.Recipe{Optimizer: plainStep{}, Schedule: nn.Constant{LR: 1}, Micro: micro})
		require.NoError(t, err)
		r := newTrainer(t, m)
		r.run(map[string]*tensor.Tensor{"x": tensor.Of([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2)})
		require.Equal(t, []float32{-4, -5}, r.state["w"].F32(), "mean over the rows")
	}
}

// Each micro-batch has a dropout mask of its own, and so has each step.
func TestMicroBatchMasks(t *testing.T) {
	const n = 64
	model := nn.Model{Name: "masks", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{2, n})
		y := s.Dropout(s.Mul(x, s.Param("w", []int64{n}, nn.Ones)), 0.5)
		s.Output("y", y)
		return s.MeanAll(y)
	}}
	m, err := nn.Train(model, nn.Recipe{Optimizer: plainStep{}, Schedule: nn.Constant{LR: 0}, Micro: 2})
	require.NoError(t, err)
	r := newTrainer(t, m)
	ones := make([]float32, 2*n)
	for i := range ones {
		ones[i] = 1
	}
	in := map[string]*tensor.Tensor{"x": tensor.Of(ones, 2, n)}
	seen := map[string]bool{}
	for range 2 {
		out := r.run(in)
		for _, name := range []string{"y.0", "y.1"} {
			seen[fmt.Sprint(out[name].F32())] = true
		}
	}
	require.Len(t, seen, 4)
}

func TestSchedules(t *testing.T) {
	cosine := func(s float64) float64 {
		if s < 4 {
			return 1e-2 * (s + 1) / 4
		}
		return 1e-3 + 0.5*9e-3*(1+math.Cos(math.Pi*min(1, (s-4)/6)))
	}
	linear := func(s float64) float64 {
		if s < 4 {
			return 1e-2 * (s + 1) / 4
		}
		return 1e-2 - 9e-3*min(1, (s-4)/6)
	}
	for _, c := range []struct {
		schedule nn.Schedule
		want     func(s float64) float64
	}{
		{nn.Constant{LR: 0.25}, func(float64) float64 { return 0.25 }},
		{nn.Cosine{LR: 1e-2, Min: 1e-3, Warmup: 4, Steps: 10}, cosine},
		{nn.Linear{LR: 1e-2, Min: 1e-3, Warmup: 4, Steps: 10}, linear},
		{nn.Cosine{LR: 1, Min: 0, Warmup: 0, Steps: 1}, func(s float64) float64 { return 0.5 * (1 + math.Cos(math.Pi*min(1, s))) }},
	} {
		m, err := nn.Train(probe(1), nn.Recipe{Optimizer: plainStep{}, Schedule: c.schedule})
		require.NoError(t, err)
		r := newTrainer(t, m)
		for s := range 13 {
			r.state["w"] = tensor.Of([]float32{0, 0}, 2)
			r.run(map[string]*tensor.Tensor{"x": tensor.Of([]float32{-1, -1}, 1, 2)})
			require.InDelta(t, c.want(float64(s)), r.state["w"].F32()[0], 1e-7, "%T step %d", c.schedule, s)
		}
	}
}

// Decay pulls at matrices and leaves biases alone; zero gradients move nothing else.
func TestDecayOfMatricesOnly(t *testing.T) {
	model := nn.Model{Name: "decay", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{1, 1})
		return s.Scale(s.SumAll(s.Add(s.Mul(x, s.Param("w", []int64{1, 1}, nn.Ones)), s.Param("b", []int64{1}, nn.Ones))), 0)
	}}
	for _, o := range []nn.Optimizer{nn.DefaultAdamW(), nn.DefaultLion(), nn.SGD{Momentum: 0.9, Decay: 0.1}, nn.SGD{Decay: 0.1}} {
		m, err := nn.Train(model, nn.Recipe{Optimizer: o, Schedule: nn.Constant{LR: 0.5}})
		require.NoError(t, err)
		r := newTrainer(t, m)
		r.run(map[string]*tensor.Tensor{"x": tensor.Of([]float32{1}, 1, 1)})
		require.Equal(t, float32(1-0.5*float32(0.1)), r.state["w"].F32()[0], "%T", o)
		require.Equal(t, float32(1), r.state["b"].F32()[0], "%T", o)
	}
}

// A frozen weight has no gradient, no optimizer state and no new value.
func TestFrozen(t *testing.T) {
	m, err := nn.Train(nn.Model{Name: "frozen", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{2, 3})
		h := s.MatMul(x, s.Frozen("base", []int64{3, 3}, nn.Normal(1)))
		return s.MeanAll(s.Linear("out", h, 1))
	}}, recipe())
	require.NoError(t, err)
	step := m.Func("step")
	require.NotNil(t, step.Param("base"))
	require.Nil(t, step.Result("base"))
	require.Nil(t, step.Param("base/m"))
	require.NotNil(t, m.Func("init").Result("base"))
}

// Models built at once from many goroutines, in any order, are the same.
func TestBuildingIsPure(t *testing.T) {
	want := map[string]string{}
	for _, spec := range tiny {
		m, err := use(t, spec).Train()
		require.NoError(t, err)
		want[spec] = m.String()
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range tiny {
				spec := tiny[(i+g)%len(tiny)]
				u, err := nn.ParseBuiltin(spec)
				if err == nil {
					var m *ir.Module
					if m, err = u.Train(); err == nil && m.String() != want[spec] {
						err = fmt.Errorf("%s differs", spec)
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

// A token a step, with keys and values kept as state, gives the logits that all tokens at once give, bit for
// bit; after the last position it starts anew.
func TestPredictStep(t *testing.T) {
	for _, spec := range tiny {
		name, _, _ := strings.Cut(spec, ",")
		if !strings.Contains(spec, "vocab=") || name == "lstm" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			all, err := use(t, spec).Infer()
			require.NoError(t, err)
			step, err := use(t, spec+",predict=step").Infer()
			require.NoError(t, err)
			key := tensor.Key(7, math.MaxUint32, 0)
			weights, err := interp.RunNamed(all.Func("init"), map[string]*tensor.Tensor{"key": key}, interp.Options{})
			require.NoError(t, err)
			state, err := interp.RunNamed(step.Func("init"), map[string]*tensor.Tensor{"key": key}, interp.Options{})
			require.NoError(t, err)
			weights["key"], state["key"] = key, key
			in := data(all.Func("step"))["tokens"]
			weights["tokens"] = in
			out, err := interp.RunNamed(all.Func("step"), weights, interp.Options{})
			require.NoError(t, err)
			want := out["logits"]
			B, T, V := want.Shape[0], want.Shape[1], want.Shape[2]
			for s := range 2 * T {
				at := s % T
				one := make([]int32, B)
				for b := range B {
					one[b] = in.I32()[b*T+at]
				}
				state["tokens"] = tensor.Of(one, B, 1)
				got, err := interp.RunNamed(step.Func("step"), state, interp.Options{})
				require.NoError(t, err)
				for b := range B {
					require.Equal(t, want.F32()[(b*T+at)*V:(b*T+at+1)*V], got["logits"].F32()[b*V:(b+1)*V], "step %d", s)
				}
				for name, v := range got {
					if name != "logits" {
						state[name] = v
					}
				}
			}
		})
	}
}

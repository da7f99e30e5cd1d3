package nn_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// described is a model whose description holds everything that a caller could keep and change later: slices,
// an array, an operation's attributes.
type described struct {
	model nn.Model
	lists [][]int64
	array *tensor.Tensor
}

func describe() *described {
	d := &described{lists: [][]int64{{4, 6}, {2, 12}, {1, 0}, {1}, {0}, {6, 6}, {6, 5, 4}, {0, 1}, {3, 4}}, array: tensor.New(dtype.F32, 6)}
	copy(d.array.F32(), []float32{1, 2, 3, 4, 5, 6})
	l := d.lists
	forward := func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, l[0], nn.Normal01)
		h := s.Reshape(x, l[1]...)
		h = s.Reshape(h, 4, 6)
		h = s.Transpose(h, l[2]...)
		h = s.Contract(h, s.Param("w", l[5], nn.Zeros), nil, nil, l[4], l[3])
		h = s.Add(h, s.Mul(s.Array(d.array), s.Op("constant", nil, ir.A("value", d.array))))
		h = s.BroadcastTo(s.Reshape(h, 1, 4, 6), 5, 4, 6)
		y := s.Op("slice", []*nn.Tensor{s.Buffer("b", dtype.F32, l[8], nn.Zeros)}, ir.A("start", l[7]), ir.A("limit", l[8]))
		h = s.Add(s.SumAll(h), s.SumAll(y))
		return h
	}
	d.model = nn.Model{Name: "m", Loss: forward, Predict: func(s *nn.Scope) { s.Output("y", forward(s)) }}
	return d
}

// spoil changes everything that the caller still holds.
func (d *described) spoil() {
	for _, l := range d.lists {
		for i := range l {
			l[i] += 7
		}
	}
	for i := range d.array.F32() {
		d.array.F32()[i] = -1
	}
}

func trained() nn.Recipe {
	return nn.Recipe{Optimizer: nn.DefaultAdamW(), Schedule: nn.Constant{LR: 1e-3}, Clip: 1}
}

// TestModulesOwnWhatTheyHold: what a caller does to slices, arrays, options and recipes after use changes no module.
func TestModulesOwnWhatTheyHold(t *testing.T) {
	d := describe()
	r := trained()
	adam := nn.DefaultAdamW()
	r.Optimizer = &adam
	m, err := nn.Train(d.model, r)
	require.NoError(t, err)
	infer, err := nn.Infer(d.model)
	require.NoError(t, err)
	train, predict := m.String(), infer.String()
	d.spoil()
	adam.Beta1, r.Clip, r.Micro = 0.5, 9, 4
	assert.Equal(t, train, m.String())
	assert.Equal(t, predict, infer.String())
	require.NoError(t, ir.Verify(m))
}

// TestOneDescriptionTwoModules: modules of one description share nothing: what is done to one, its values and
// attributes included, changes no other, whatever the order in which they are built.
func TestOneDescriptionTwoModules(t *testing.T) {
	d := describe()
	build := func(kind string) *ir.Module {
		var m *ir.Module
		var err error
		if kind == "train" {
			m, err = nn.Train(d.model, trained())
		} else {
			m, err = nn.Infer(d.model)
		}
		require.NoError(t, err)
		return m
	}
	alone := map[string]string{"train": build("train").String(), "infer": build("infer").String()}
	for _, order := range [][]string{{"train", "infer", "train"}, {"infer", "train", "infer"}, {"train", "train", "infer"}, {"infer", "infer", "train"}} {
		var built []*ir.Module
		for _, kind := range order {
			built = append(built, build(kind))
		}
		spoilModule(built[0])
		for i, kind := range order[1:] {
			assert.Equal(t, alone[kind], built[i+1].String(), "%v, module %d", order, i+1)
		}
	}
}

// spoilModule changes all that can be reached from a module.
func spoilModule(m *ir.Module) {
	for _, f := range m.Funcs {
		for _, p := range f.Body.Params {
			p.Name += "_"
			for i := range p.Type.Shape {
				p.Type.Shape[i]++
			}
		}
		f.Body.Walk(func(op *ir.Op) {
			for _, a := range op.Attrs {
				switch v := a.Val.(type) {
				case []int64:
					for i := range v {
						v[i]++
					}
				case *tensor.Tensor:
					for i := range v.Data {
						v.Data[i]++
					}
				}
			}
			for _, r := range op.Results {
				for i := range r.Type.Shape {
					r.Type.Shape[i]++
				}
			}
		})
		slices.Reverse(f.Results)
	}
}

// TestDescriptionsFromManyGoroutines: thirty-two goroutines build from the same builtins and get the same text.
func TestDescriptionsFromManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	texts := map[string]int{}
	for range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d := describe()
			m, err := nn.Train(d.model, trained())
			text := ""
			if err == nil {
				text = m.String()
			}
			d.spoil()
			mu.Lock()
			texts[text]++
			mu.Unlock()
		}()
	}
	wg.Wait()
	assert.Len(t, texts, 1)
	assert.Zero(t, texts[""])
}

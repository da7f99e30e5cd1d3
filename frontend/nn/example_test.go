package nn_test

import (
	"fmt"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
)

// A model of one's own: a function from a scope to the loss.
func Example() {
	model := nn.Model{
		Name: "digits",
		Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{32, 64}, nn.Normal01)
			y := s.Input("y", dtype.I32, []int64{32}, nn.Labels(10))
			for i := range 2 {
				l := s.Inf("layers.%d", i)
				x = l.Dropout(l.Gelu(l.Linear("fc", l.LayerNorm("ln", x), 128)), 0.1)
			}
			return s.CrossEntropy(s.Linear("out", x, 10), y)
		},
	}
	module, err := nn.Train(model, nn.Recipe{
		Optimizer: nn.DefaultAdamW(),
		Schedule:  nn.Cosine{LR: 1e-3, Min: 1e-4, Warmup: 20, Steps: 500},
		Clip:      1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range module.Func("step").Body.Params {
		if p.Role() == ir.RoleParam {
			fmt.Println(p.Name, p.Type)
		}
	}
	// Output:
	// layers.0.ln.g f32[64]
	// layers.0.ln.b f32[64]
	// layers.0.fc.w f32[64,128]
	// layers.0.fc.b f32[128]
	// layers.1.ln.g f32[128]
	// layers.1.ln.b f32[128]
	// layers.1.fc.w f32[128,128]
	// layers.1.fc.b f32[128]
	// out.w f32[128,10]
	// out.b f32[10]
}

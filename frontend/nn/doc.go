// Package nn is the Go way to describe a model: functions over tensors that add
// layers to a scope. From one description come a training module (loss, gradients,
// clipping, optimizer) and an inference module whose weights have the same names.
//
//	model := nn.Model{Name: "mlp", Loss: func(s *nn.Scope) *nn.Tensor {
//		x := s.Input("x", dtype.F32, []int64{32, 64}, nn.Normal01)
//		y := s.Input("y", dtype.I32, []int64{32}, nn.Labels(10))
//		h := s.Gelu(s.Linear("hidden", x, 256))
//		return s.CrossEntropy(s.Linear("out", h, 10), y)
//	}}
//	module, err := nn.Train(model, nn.Recipe{Optimizer: nn.DefaultAdamW(), Schedule: nn.Constant{LR: 1e-3}, Clip: 1})
//
// Every operation knows the layer path of the scope it was added to, and so does every
// error. A parameter is declared where it is used; sharing a weight is using its tensor
// twice. The package has no state of its own: models may be built in any order and from
// any number of goroutines.
package nn

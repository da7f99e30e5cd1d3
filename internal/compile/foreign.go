package compile

import (
	"reprise/ir"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/runtime"
)

// InterpOptions let the interpreter call foreign kernels, relative libraries being in dir. done
// unloads them.
func InterpOptions(dir string) (opt interp.Options, done func() error) {
	f := runtime.NewForeign(dir)
	opt.Foreign = func(op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		out := make([]*tensor.Tensor, len(op.Results))
		for i, r := range op.Results {
			out[i] = tensor.New(r.Type.DType, r.Type.Shape...)
		}
		return out, f.Call(op.Attrs.Str("library"), op.Attrs.Str("symbol"), op.Attrs.Int("tiles"), ops.ForeignCall(op), in, out)
	}
	return opt, f.Close
}

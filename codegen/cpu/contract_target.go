package cpu

import "github.com/llir/llvm/ir"

// Target is the instruction set that kernels are compiled for.
type Target int

// The targets, in rising order.
const (
	V3     Target = iota // x86-64-v3: AVX2, FMA, F16C
	V4                   // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
	V4BF16               // x86-64-v4 with AVX512_BF16
)

// contractAttrs are the function attributes that make LLVM use the target fully.
func (t Target) contractAttrs() []ir.FuncAttribute {
	cpu, width, features := "x86-64-v4", "512", ""
	switch t {
	case V3:
		cpu, width = "x86-64-v3", "256"
	case V4BF16:
		features = "+avx512bf16"
	}
	attrs := []ir.FuncAttribute{
		ir.AttrPair{Key: "target-cpu", Value: cpu},
		ir.AttrPair{Key: "prefer-vector-width", Value: width},
		ir.AttrPair{Key: "min-legal-vector-width", Value: width},
	}
	if features != "" {
		attrs = append(attrs, ir.AttrPair{Key: "target-features", Value: features})
	}
	return attrs
}

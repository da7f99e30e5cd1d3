package cpu

import (
	"strings"

	"golang.org/x/sys/cpu"

	"reprise/internal/diag"
)

// ParseTarget reads cpu, cpu:native, cpu:x86-64-v3 or cpu:x86-64-v4. The first two, and "", are
// what this machine runs best.
func ParseTarget(s string) (Target, error) {
	kind, arch, _ := strings.Cut(s, ":")
	switch {
	case s == "" || kind == "cpu" && (arch == "" || arch == "native"):
		return native()
	case kind == "cpu" && arch == "x86-64-v3":
		return V3, nil
	case kind == "cpu" && arch == "x86-64-v4":
		return V4, nil
	case kind == "cuda":
		return V3, diag.Errorf("target", "target %q: programs for GPUs are not built yet", s).
			WithHint("compile for cpu; --emit ptx writes the GPU text of the kernels that have one")
	}
	return V3, diag.Errorf("target", "unknown target %q", s).WithHint("targets: cpu, cpu:native, cpu:x86-64-v3, cpu:x86-64-v4")
}

func native() (Target, error) {
	x := cpu.X86
	switch {
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512CD && x.HasAVX512DQ && x.HasAVX512VL:
		if x.HasAVX512BF16 {
			return V4BF16, nil
		}
		return V4, nil
	case x.HasAVX2 && x.HasFMA:
		return V3, nil
	}
	return V3, diag.Errorf("target", "this processor has neither AVX2 with FMA nor AVX-512").
		WithHint("compile on it with --target cpu:x86-64-v3 for another machine")
}

// String is the target as ParseTarget reads it.
func (t Target) String() string {
	switch t {
	case V3:
		return "cpu:x86-64-v3"
	case V4BF16:
		return "cpu:x86-64-v4+bf16"
	}
	return "cpu:x86-64-v4"
}

// Features are the instruction sets that the code needs, by the names of the executable's check.
func (t Target) Features() []string {
	v3 := []string{"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}
	switch t {
	case V4:
		return append(v3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
	case V4BF16:
		return append(v3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512bf16")
	}
	return v3
}

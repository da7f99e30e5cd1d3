package compile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"reprise/internal/diag"
	"reprise/passes/policy"
)

// Bytes writes a number of bytes for a person: the exact number and the binary unit.
func Bytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// Budget is what a person may ask for: bytes, a share of what keeping everything takes, the
// smallest that can be found, or (the zero value) no limit.
type Budget struct {
	Bytes   int64
	Percent float64
	Min     bool
}

// ParseBudget reads "512MiB", "1.5GB", "60%", "min", or "fit": what is free on this machine.
func ParseBudget(s string) (Budget, error) {
	bad := func(what error) (Budget, error) {
		return Budget{}, diag.Errorf("usage", "budget %v", what).
			WithHint("write 512MiB, 1.5GB, 60%% (of what keeping everything takes), min, or fit (what this machine has free)")
	}
	t := strings.TrimSpace(s)
	switch {
	case t == "":
		return Budget{}, nil
	case t == "min":
		return Budget{Min: true}, nil
	case t == "fit":
		return fitting()
	case strings.HasSuffix(t, "%"):
		f, err := strconv.ParseFloat(strings.TrimSuffix(t, "%"), 64)
		if err != nil || !(f > 0 && f <= 100000) {
			return bad(fmt.Errorf("%q is no percentage above 0", s))
		}
		return Budget{Percent: f}, nil
	}
	n, err := policy.ParseBytes(t)
	switch {
	case err != nil:
		return bad(err)
	case n == 0:
		return bad(fmt.Errorf("%q leaves no byte", s))
	}
	return Budget{Bytes: n}, nil
}

func sortBinding(bs []Binding) {
	slices.SortStableFunc(bs, func(a, b Binding) int {
		switch {
		case a.Bytes > b.Bytes:
			return -1
		case a.Bytes < b.Bytes:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
}

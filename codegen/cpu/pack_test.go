package cpu

import (
	"math/rand"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/kern"
)

// TestModulesOfKernels: what clang compiles is a function of the kernels, not of the order in which they were asked for;
// a kernel less leaves most modules as they were; and functions that kernels share are compiled once.
func TestModulesOfKernels(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	var contracts []*kern.Contract
	for i := range 12 {
		contracts = append(contracts, contractRandom(r, i, false))
	}
	type adding func(u *Unit) error
	var all []adding
	for _, c := range contracts {
		all = append(all, func(u *Unit) error { _, err := u.Contract(c); return err })
	}
	for i, k := range samples.Programs() {
		all = append(all, func(u *Unit) error { _, err := u.Kernel(k); return err })
		if i == 20 {
			break
		}
	}
	for _, id := range []uint32{3, 1, 2} {
		all = append(all, func(u *Unit) error { _, err := u.Kernel(samples.Dropout(2048, id)); return err })
	}
	modules := func(list []adding) []string {
		u := NewUnit(V4)
		for _, f := range list {
			require.NoError(t, f(u))
		}
		return u.Modules()
	}
	want := modules(all)
	require.Greater(t, len(want), 4)
	back := slices.Clone(all)
	slices.Reverse(back)
	assert.Equal(t, want, modules(back))
	same := 0
	for _, text := range modules(all[1:]) {
		if slices.Contains(want, text) {
			same++
		}
	}
	assert.GreaterOrEqual(t, same, len(want)/2, "of %d", len(want))
	defined := regexp.MustCompile(`(?m)^define weak_odr hidden void @(\w+)`).FindAllStringSubmatch(strings.Join(want, ""), -1)
	require.NotEmpty(t, defined)
	seen := map[string]bool{}
	for _, d := range defined {
		assert.False(t, seen[d[1]], d[1])
		seen[d[1]] = true
	}
}

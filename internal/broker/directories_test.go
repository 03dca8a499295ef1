package broker

import (
	"testing"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// However a directory is written, the plan names it as the log directories do: cleaned.
// A broker whose directory has no id there is refused by the controller.
func TestPlanNamesDirectoriesCleaned(t *testing.T) {
	t.Parallel()
	plan, err := PlanDirectories(vfs.NewMem(), []string{"./stele-data", "/var//lib/stele/"}, "./stele-data/", 1, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.IDs) != 2 || plan.MetadataDir != "stele-data" || plan.IDs["stele-data"] == metadata.ZeroUUID || plan.IDs["/var/lib/stele"] == metadata.ZeroUUID {
		t.Errorf("%+v", plan)
	}
	if !plan.FormatsQuorum() {
		t.Error("the metadata directory is new, and not formatted")
	}
}

package broker

import (
	"errors"
	"syscall"
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

// One of several log directories that the disk does not let us read is noted and gone on without; the metadata directory,
// and the last one, are refused.
func TestPlanGoesOnWithoutAFailedDirectory(t *testing.T) {
	t.Parallel()
	disk := vfs.NewFault(vfs.NewMem())
	plan, err := PlanDirectories(disk, []string{"/a", "/b", "/c"}, "/a", 1, "")
	if err == nil {
		err = plan.Carry(disk, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := plan.IDs["/c"]
	disk.Add(vfs.Rule{Kind: vfs.OpOpen, Name: "/b/meta", Count: -1, Err: syscall.EIO})
	plan, err = PlanDirectories(disk, []string{"/a", "/b", "/c"}, "/a", 1, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, known := plan.IDs["/b"]; known || len(plan.Failed) != 1 || !errors.Is(plan.Failed["/b"], syscall.EIO) || plan.IDs["/c"] != id || len(plan.fresh) > 0 {
		t.Errorf("%+v", plan)
	}
	if _, err := PlanDirectories(disk, []string{"/a", "/c"}, "/b", 1, ""); !errors.Is(err, syscall.EIO) {
		t.Errorf("metadata in a directory that cannot be read: %v", err)
	}
	if _, err := PlanDirectories(disk, []string{"/b"}, "/a", 1, ""); !errors.Is(err, syscall.EIO) {
		t.Errorf("no log directory can be read: %v", err)
	}
	disk.Add(vfs.Rule{Kind: vfs.OpReadDir, Name: "/d", Count: -1, Err: syscall.EIO})
	if plan, err = PlanDirectories(disk, []string{"/a", "/d"}, "/a", 1, ""); err != nil || plan.Failed["/d"] == nil || len(plan.fresh) > 0 {
		t.Errorf("a new directory that cannot be read: %+v, %v", plan, err)
	}
}

// What a start has formatted is there after a loss of power, also a metadata directory that is none of the log directories:
// a controller that finds it empty would have no vote any more.
func TestFormattedDirectoriesSurviveALossOfPower(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem()
	plan, err := PlanDirectories(disk, []string{"/data/a"}, "/data/meta", 1, "")
	if err == nil {
		err = plan.Carry(disk, nil)
	}
	if err == nil {
		err = disk.SyncDir("/") // the machine's own
	}
	if err != nil {
		t.Fatal(err)
	}
	after, err := PlanDirectories(disk.CrashClone(vfs.LoseUnsynced, 1), []string{"/data/a"}, "/data/meta", 1, "")
	if err != nil || len(after.fresh) > 0 || after.IDs["/data/meta"] != plan.IDs["/data/meta"] {
		t.Errorf("%+v, %v", after, err)
	}
}

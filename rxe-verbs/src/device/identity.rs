//! The identity that devices take on for programs that insist on the names of a card's
//! (`rxe run --as mlx5`): a name and a place on a PCI bus. Nothing else of a device changes.

/// Whose names devices have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Those of NVIDIA's ConnectX adapters: `mlx5_0`, `mlx5_1`, …
    Mlx5,
}

impl Identity {
    /// All.
    pub const ALL: [Self; 1] = [Self::Mlx5];

    /// The PCI domain of these devices. No host has so many that it uses this one.
    pub const PCI_DOMAIN: &str = "7278";

    /// The name of the driver.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
        }
    }

    /// The name of a device, by its place in the list.
    pub fn device(self, number: usize) -> String {
        format!("{}_{number}", self.name())
    }

    /// The PCI address of a device, by its place in the list.
    pub fn pci_address(self, number: usize) -> String {
        // A bus has up to 32 devices; all are on buses of their own as long as there are buses.
        let (bus, slot) = (number % 255 + 1, number / 255 % 32);
        format!("{}:{bus:02x}:{slot:02x}.0", Self::PCI_DOMAIN)
    }

    /// The vendor and the device on the PCI bus: a ConnectX-5.
    pub fn pci_ids(self) -> (u16, u16) {
        match self {
            Self::Mlx5 => (0x15b3, 0x1017),
        }
    }
}
